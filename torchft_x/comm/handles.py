"""The newer way to give a group its members: every member shows a handle, and all are told the ordered list of them.

A handle says where its owner can be met. The text is the peer's (torchft-nightly)::

    {"id": "<hex, one per group object>", "store": "host:port", "global_rank": 3 or null}

All meet in the store of the first handle, under a prefix that carries the list's uuid. `ProcessGroup.reconfigure` is
`configure` with those.
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
from torchft_x.durations import seconds
from torchft_x.errors import AddressError, ConfigError

_MAX_HANDLE = 4096  # characters; ours have about 100


@dataclass
class ReconfigureOptions:
    """What `ProcessGroup.reconfigure` needs; torch's own class (2.14) has the same fields and serves as well."""

    uuid: int = 0  # of this set of members, never used before; the quorum's configuration id in a Manager
    handles: list[str] = field(default_factory=list)  # of all members, in the order of their ranks
    timeout: timedelta | None = None  # None: the group's own
    hints: dict[str, str] = field(default_factory=dict)  # not used


@dataclass(frozen=True)
class Meeting:
    """What the handles say."""

    store_addr: str  # for `ProcessGroup.configure`
    rank: int
    size: int
    global_ranks: list[int] | None  # None if one of them is not known


class Handle:
    """Ours: an id, and a store that we host from the first time somebody asks."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._store: StoreServer | None = None  # kept alive; others meet in it
        self._address = ""  # of it, with its key
        self.global_rank: int | None = None  # of this process in the whole job

    def text(self) -> str:
        if self._store is None:
            self._store, address = serve_store(net.advertise_host(None))
            self._address = address.text
        return json.dumps({"id": self._id, "store": self._address, "global_rank": self.global_rank})

    def meet(self, options: Any) -> Meeting:
        """Raises `ConfigError` for handles that can't be read, or among which ours is missing or found twice."""
        handles = options.handles
        if not isinstance(handles, list) or not handles:
            raise ConfigError("reconfigure needs the handles of all members as a list, in the order of their ranks.")
        members = [_parsed(text) for text in handles]
        places = [rank for rank, member in enumerate(members) if member["id"] == self._id]
        if len(places) != 1:
            raise ConfigError(
                f"reconfigure: this group's own handle is {len(places)} times among the {len(members)} given; pass what "
                "get_reconfigure_handle() of each member says, once."
            )
        ranks = [member["global_rank"] for member in members]
        return Meeting(
            store_addr=f"{members[0]['store']}/torchft/{int(options.uuid)}",
            rank=places[0],
            size=len(members),
            global_ranks=None if None in ranks else ranks,
        )


def timeout_of(options: Any) -> float | None:
    return None if options.timeout is None else seconds(options.timeout)


def _parsed(text: Any) -> dict[str, Any]:
    """They come through the lighthouse from other hosts: nothing in them is believed unseen."""
    try:
        if not isinstance(text, str) or len(text) > _MAX_HANDLE:
            raise ValueError
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value["id"], str):
            raise ValueError
        rank = value.get("global_rank")
        if rank is not None and type(rank) is not int:
            raise ValueError
        where = str(value["store"])
        _, prefix = split_store_address(where)
        if prefix:
            raise ValueError
    except (ValueError, KeyError, RecursionError, AddressError):
        raise ConfigError(f"reconfigure: {str(text)[:80]!r} is not a handle of a process group.") from None
    return {"id": value["id"], "store": where, "global_rank": rank}
