"""One set of members of a process group, from the start of a `configure` to the start of the next.

It knows the members, their rendezvous and how to connect with gloo, and it words the errors.
`torchft_x.comm.gloo.group` decides when to connect and when to end.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchft_x.comm.base import RankInfo
from torchft_x.comm.gloo.device import Device
from torchft_x.comm.store.client import MeetingStore
from torchft_x.comm.store.create import KeyedAddress, StoreClient, split_store_address
from torchft_x.errors import CollectiveError, TorchftXError, first_line
from torchft_x.net import Address
from torchft_x.timing import POLL_FAST, TIMING

GLOO_THREADS = 2  # gloo's own default; 1 and 4 measured no better for an all-reduce of 100 MB

_MAX_NAME = 256  # characters of another member's name in our messages
_MAX_NOTICE = 1 << 16  # bytes that a member publishes about itself; 1,000 connections take 25,000
_SOURCE_LINE = re.compile(r"^\[[^\]]*\]\s*")  # gloo's messages begin with a source location
_PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:(\d+)")  # gloo names peers like this


class GlooMembership:
    """One set of members and the state of their connection.

    The owner writes `error` and `torch_group` under its lock. All other fields belong to the connecting thread.
    """

    def __init__(self, info: RankInfo, store_addr: str, replica_id: str) -> None:
        self.info = info
        self.replica_id = replica_id  # our name in the other members' messages
        self.rank, self.size, self.config_id = info
        self.store_address: Address | KeyedAddress | None = None  # where the members meet; None for a group of one
        self._prefix = ""  # prefix of this set's keys in the store
        if self.size > 1:
            self.store_address, self._prefix = split_store_address(store_addr)
        self.client: StoreClient | None = None  # used by the connecting thread only; shutting it ends the connecting
        self.torch_group: Any = None  # torch's gloo group once connected, until it is released
        # handles of abandoned operations; torch's group must outlive them
        self.left: list[Any] = []
        self.error: TorchftXError | None = None  # the first failure; never unset
        self.cause: BaseException | None = None  # exception of the connecting thread; read only once `built` is set
        self.missing: list[int] | None = None  # ranks that never came, if known; read only once `built` is set
        self.built = threading.Event()  # connecting has succeeded, failed, or need not be waited for
        self._members: dict[str, tuple[int, str]] = {}  # "ip:port" of a member's socket -> its rank and replica id

    @property
    def ready(self) -> bool:
        """Whether collectives may be issued."""
        return self.error is None and (self.torch_group is not None or (self.size == 1 and self.built.is_set()))

    # -- connecting: on a thread of its own, without the owner's lock --

    def connect(self, store: MeetingStore, device: Device, timeout: float) -> Any:
        """Connect with all members through gloo, and return torch's group. Blocks until all have come.

        `timeout` (s) is also that of each collective. Raises RuntimeError with gloo's message, and sets `missing`.
        """
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout)
        options._threads = GLOO_THREADS
        options._devices = [device.handle]
        prefixed = store.under(self._prefix)
        try:
            return dist.ProcessGroupGloo(prefixed, self.rank, self.size, options)
        except RuntimeError:
            if self.error is None:  # otherwise we were aborted, and the store's client is shut
                self.missing = [rank for rank in range(self.size) if not prefixed.check([_gloo_key(rank)])]
            raise

    def meet(self, store: MeetingStore, device: Device) -> None:
        """Publish our sockets' addresses and read the other members', so that errors can name members. Best effort.

        Polls instead of waiting in the store: a member may have gone, and broken waits of torch's store print pages of
        C++ stack traces.
        """
        prefixed = store.under(self._prefix)
        notice = {"id": self.replica_id[:_MAX_NAME], "at": device.addresses()}
        prefixed.set(_notice_key(self.rank), json.dumps(notice)[:_MAX_NOTICE])
        members: dict[str, tuple[int, str]] = {}
        give_up = time.monotonic() + TIMING.meet
        for rank in range(self.size):
            while (raw := prefixed.value_within(_notice_key(rank), POLL_FAST)) is None:
                if self.error is not None or time.monotonic() > give_up:
                    return
            members.update((address, (rank, name)) for address, name in _read_notice(raw))
        self._members = members  # assigned at once: a reader sees all or nothing

    # -- error messages --

    def not_connected(self, timeout: float) -> str:
        """Return why connecting took too long or failed, with the ranks that never came if known."""
        where = "nowhere" if self.store_address is None else f"the store at {self.store_address.target}"
        why = "" if self.cause is None else f" ({_plain(self.cause)})"
        if self.missing is None:
            return (
                f"Configuring {self.info} failed: not all members were connected by {where} within {timeout:g} s{why}."
            )
        if not self.missing:
            return f"Configuring {self.info} failed: all members came to {where}, but did not connect in {timeout:g} s{why}."
        who = "rank" if len(self.missing) == 1 else "ranks"
        ranks = ", ".join(map(str, self.missing))
        return f"Configuring {self.info} failed: {who} {ranks} did not come to {where} within {timeout:g} s{why}."

    def failure(self, op: str, cause: BaseException | None) -> CollectiveError:
        """Return the error of a failed collective. `cause` is None if the limit given to ``wait()`` ran out."""
        if self.error is not None:
            return CollectiveError(f"{op} was released: {self.error}", getattr(self.error, "suspects", ()))
        if cause is None:
            return CollectiveError(
                f"{op} on {self.info} timed out after the limit given to wait(); the group was aborted."
            )
        if isinstance(cause, CollectiveError):
            text, suspects = str(cause), cause.suspects
        else:
            text, suspects = self._name_peers(_plain(cause))
        return CollectiveError(f"{op} on {self.info} failed: {text}; the group was aborted.", suspects)

    def lost(self, peers: Iterable[str]) -> CollectiveError:
        """Return the error that names the members whose connections are not among `peers` (``ip:port``)."""
        present = {self._members[peer][0] for peer in peers if peer in self._members}
        gone = sorted({member for member in self._members.values() if member[0] not in {*present, self.rank}})
        who = ", ".join(f"rank {rank} ({name})" for rank, name in gone) or "a member"
        return CollectiveError(f"the connection with {who} was lost", tuple(name for _, name in gone))

    def _name_peers(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Replace the addresses in gloo's message by members' names. Return the text and the replica ids.

        gloo prints the port's two bytes in the wrong order on little-endian machines, so both orders are looked up.
        """
        suspects: list[str] = []

        def name(match: re.Match[str]) -> str:
            port = int(match[2])
            for known in (f"{match[1]}:{port}", f"{match[1]}:{socket.htons(port & 0xFFFF)}"):
                if known in self._members:
                    rank, replica_id = self._members[known]
                    suspects.append(replica_id)
                    return f"rank {rank} ({replica_id})" if replica_id else f"rank {rank}"
            return match[0]

        text = _PEER.sub(name, text)
        return text, tuple(s for s in suspects if s)


def full_group(torch_group: Any, rank: int, size: int) -> Any:
    """Wrap a bare gloo group in a full torch process group, for the two collectives that the bare one lacks."""
    full = dist.ProcessGroup(dist.HashStore(), rank, size)
    for kind in ("cpu", "cuda", "xpu"):
        if kind == "cpu" or getattr(torch, kind).is_available():
            full._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.GLOO, torch_group)
    full._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return full


def _gloo_key(rank: int) -> str:
    """Return the key under which gloo publishes a member's address (its context 0)."""
    return f"0/{rank}"


def _notice_key(rank: int) -> str:
    return f"torchft_x/{rank}"


def _read_notice(raw: bytes) -> list[tuple[str, str]]:
    """Return (address, replica id) for each socket in a member's notice; empty if the notice can't be parsed.

    The names are used in messages only.
    """
    try:
        notice = json.loads(raw[:_MAX_NOTICE])
        name = str(notice["id"])[:_MAX_NAME]
        return [(str(address), name) for address in notice["at"]]
    except (ValueError, TypeError, KeyError):
        return []


def _plain(cause: BaseException) -> str:
    """Return a gloo or store message as one line, without source locations, advice and stack traces."""
    line = _SOURCE_LINE.sub("", first_line(cause)).split(" This is typically", 1)[0]
    return line.strip().rstrip(".")
