"""torchft's newer way to give a group its members: each member publishes a handle, and all receive the ordered list.

A handle says where its owner can be met. Its text is the same as torchft's (torchft-nightly)::

    {"id": "<hex, one per group object>", "store": "host:port", "global_rank": 3 or null}

All members meet in the store of the first handle, under a prefix that contains the list's uuid.
`ProcessGroup.reconfigure` calls `configure` with that store and prefix.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torchft_x import net
from torchft_x.comm.store.create import serve_store, split_store_address
from torchft_x.comm.store.server import StoreServer
from torchft_x.errors import ConfigError
from torchft_x.json_values import from_json

_MAX_HANDLE = 4096  # characters; our own handles have about 100


@dataclass
class ReconfigureOptions:
    """Arguments of `ProcessGroup.reconfigure`. torch's own class (2.14) has the same fields and can be used instead."""

    uuid: int = 0  # id of this set of members, never used before; a Manager passes the quorum's configuration id
    handles: list[str] = field(default_factory=list)  # handles of all members, in the order of their ranks
    timeout: timedelta | None = None  # None means the group's own timeout
    hints: dict[str, str] = field(default_factory=dict)  # unused


@dataclass(frozen=True)
class _HandleText:
    id: str
    store: str
    global_rank: int | None


class Handle:
    """This group's own handle: an id, and a store that this process hosts from the first request for the handle."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._store: StoreServer | None = None  # kept alive: the members meet in it
        self._address = ""  # address of `_store`, with its key
        self.global_rank: int | None = None  # rank of this process in the whole job

    def text(self) -> str:
        if self._store is None:
            self._store, address = serve_store(net.advertise_host(None))
            self._address = address.text
        return json.dumps({"id": self._id, "store": self._address, "global_rank": self.global_rank})

    def meet(self, options: Any) -> tuple[str, int, int, list[int] | None]:
        """Return the address where the members named in `options` meet, our rank, their number and global ranks.

        Raises `ConfigError` for handles that can't be read, or if our own handle is missing or listed twice.
        """
        handles = options.handles
        if not isinstance(handles, list) or not handles:
            raise ConfigError("reconfigure needs the handles of all members as a list, in the order of their ranks.")
        members = [_parsed(text) for text in handles]
        own = [rank for rank, member in enumerate(members) if member.id == self._id]
        if len(own) != 1:
            raise ConfigError(
                f"reconfigure: this group's own handle is {len(own)} times among the {len(members)} given; pass what "
                "get_reconfigure_handle() of each member says, once."
            )
        ranks = [member.global_rank for member in members if member.global_rank is not None]
        where = f"{members[0].store}/torchft/{int(options.uuid)}"
        return where, own[0], len(members), ranks if len(ranks) == len(members) else None


def _parsed(text: Any) -> _HandleText:
    """Parse a handle. Every field is validated, since handles come from other hosts through the lighthouse."""
    try:
        if not isinstance(text, str) or len(text) > _MAX_HANDLE:
            raise ValueError
        handle = from_json(_HandleText, {"global_rank": None, **json.loads(text)})
        if split_store_address(handle.store)[1]:
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(f"reconfigure: {str(text)[:80]!r} is not a handle of a process group.") from None
    return handle
