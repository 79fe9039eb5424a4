"""Checkpoint transport through storage that all groups reach, for clusters without HTTP between groups.

No pickle. Each process has a folder of its own below the URL, whose name `metadata()` returns::

    heal-GROUP-RANK-NONCE/00000001.data    raw bytes, as format/blocks.py cuts them
                          offer.json       HMAC of the rest (with the run's token) | head, JSON | layout, JSON

The data is written first. The HMAC covers everything that a reader relies on: the state, the layout, a digest of each
block.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import TypeVar

from torch import Tensor

from torchft_x import env
from torchft_x.core.types import State
from torchft_x.durations import seconds
from torchft_x.errors import TransferError
from torchft_x.json_values import from_json
from torchft_x.transfer.durable.reader import read_blocks, windows
from torchft_x.transfer.durable.sealed import MAX_SEALED_BYTES
from torchft_x.transfer.durable.store import MissingError, Store
from torchft_x.transfer.format.blocks import Block, cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout, dump, parse
from torchft_x.transfer.format.memory import allocate, memory_of
from torchft_x.transfer.format.rebuild import find_targets, rebuild
from torchft_x.transfer.snapshot import copy_to_host, on_accelerator, serves
from torchft_x.transfer.transport import CheckpointTransport

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = "torchft_x/heal/1"
OFFER = "offer.json"
KEPT = 2  # number of data files; the one before the newest may still be read
_NAME = re.compile(r"heal-[A-Za-z0-9_-]{1,100}")
_DATA = re.compile(r"[0-9]{8}\.data")
_LOOK_AGAIN = 0.05, 0.5  # seconds between two checks for an offer: the first pause, the longest


@dataclass(frozen=True)
class _Offer:
    format: str
    step: int
    committed_in: int
    file: str
    digests: tuple[int, ...]


class FsspecTransport(CheckpointTransport[T]):
    """Offers this process's state in a folder of `url`, and reads others' states from it.

    Args:
        url: of fsspec, the same for all groups; its package must be installed.
        timeout: seconds or a timedelta that `shutdown(wait=True)` may take.
        token: of the run (default TORCHFT_X_TOKEN or TORCHFT_X_TOKEN_FILE; "" for none): offers carry its HMAC.

    The source's training is stopped only while the state is copied to memory; a thread writes it. Files of an earlier
    attempt of the same group and rank are removed at the start, this one's by `shutdown`. Raises `ConfigError` for a
    URL that can't be used.
    """

    def __init__(self, url: str, timeout: float | timedelta = 60.0, *, token: str | None = None) -> None:
        self._store = Store(url)
        self._timeout = seconds(timeout)
        self._key = ((env.read_token() if token is None else token) or "").encode()
        who = re.sub(r"[^A-Za-z0-9]", "_", f"{env.read(env.REPLICA_GROUP_ID, '')}")[:40]
        self._prefix = f"heal-{who}-{env.read_int(env.RANK, 0)}-"
        self._name = self._prefix + secrets.token_hex(8)
        self._number = 0  # number of the newest data file
        self._memory: Tensor | None = None  # memory of the newest snapshot, once it is written
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="torchft_x-heal-storage", daemon=True)
        self._thread.start()
        if who:
            self._tasks.put(self._clear)

    def __repr__(self) -> str:
        return f"<FsspecTransport {self._store.shown}/{self._name}>"

    def metadata(self) -> str:
        """Return the name of this process's folder."""
        return self._name

    # --- source -------------------------------------------------------------------------------------------------------

    def send_checkpoint(
        self,
        dst_ranks: list[int],
        step: int,
        state_dict: T,
        timeout: float | timedelta = 60.0,
        *,
        committed_in: int = 0,
    ) -> None:
        """Freeze `state_dict` and return. A thread writes it while training goes on. Raises `LeafError`."""
        layout, sources = flatten(state_dict)
        text = dump(layout)
        starts, length = place_blobs(layout.blobs)
        pinned = on_accelerator(sources)
        memory, self._memory = self._memory, None
        if memory is None or not serves(memory, length, pinned):
            memory = allocate(max(length, 1), pinned=pinned)
        copy_to_host(sources, starts, memory)
        self._number += 1
        number, frozen = self._number, memory
        self._tasks.put(lambda: self._write(number, State(step, committed_in), layout, text, frozen, length))

    def _write(self, number: int, state: State, layout: Layout, text: bytes, memory: Tensor, length: int) -> None:
        file = f"{number:08d}.data"
        digests = tuple(digest(memory[b.start : b.start + b.nbytes]) for b in cut_blocks(layout.blobs))
        self._store.write(f"{self._name}/{file}", [memory_of(memory)[:length]] if length else [])
        self._memory = memory
        offer = _Offer(FORMAT, state.step, state.committed_in, file, digests)
        rest = json.dumps(asdict(offer), separators=(",", ":")).encode() + b"\n" + text
        self._store.write(f"{self._name}/{OFFER}", [self._seal(rest) + b"\n" + rest])
        if number > KEPT:
            self._store.remove(f"{self._name}/{number - KEPT:08d}.data")

    def disallow_checkpoint(self) -> None:
        """Remove the offer, on the thread that wrote it."""
        self._tasks.put(lambda: self._store.remove(self._name))

    def shutdown(self, wait: bool = True) -> None:
        if self._thread.is_alive():
            self._tasks.put(lambda: self._store.remove(self._name))
            self._tasks.put(None)
        if wait:
            self._thread.join(self._timeout)

    def _clear(self) -> None:
        for name in self._store.children():
            if name.startswith(self._prefix) and name != self._name:
                self._store.remove(name)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except TransferError as e:
                log.warning("no state can be offered to others: %s", e)

    # --- reader -------------------------------------------------------------------------------------------------------

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta,
        *,
        committed_in: int = 0,
        into: T | None = None,
    ) -> T:
        """Return the state of the process whose `metadata()` is given; wait for it up to `timeout`.

        Raises `TransferError` with `torn`.
        """
        deadline = time.monotonic() + seconds(timeout)
        if _NAME.fullmatch(metadata) is None:
            raise TransferError(
                f"replica rank {src_rank} says that its state is at {metadata[:100]!r}, which is no folder of an "
                "FsspecTransport; give all groups the same transport."
            )
        offer, layout = self._wait_for_offer(metadata, State(step, committed_in), deadline)
        targets = find_targets(layout, into)
        landing = Landing(layout, targets)
        torn = landing.copies_into_targets or any(landing.in_place)
        try:
            self._fill(metadata, offer, cut_blocks(layout.blobs), landing, deadline)
            return rebuild(layout, targets, landing.finish())
        except TransferError as e:
            e.torn = torn
            raise

    def _wait_for_offer(self, name: str, wanted: State, deadline: float) -> tuple[_Offer, Layout]:
        pause, most = _LOOK_AGAIN
        while True:
            offer = self._offer(name)
            state = None if offer is None else State(offer[0].step, offer[0].committed_in)
            if offer is not None and state == wanted:
                return offer
            if (state is not None and state > wanted) or time.monotonic() + pause > deadline:
                raise TransferError(
                    f"checkpoint {self._store.shown}: {name} offers {state or 'nothing'}, not {wanted}."
                )
            time.sleep(pause)
            pause = min(2 * pause, most)

    def _offer(self, name: str) -> tuple[_Offer, Layout] | None:
        """Return the offer in a folder and its layout, or None if there is none, it is being written, or its HMAC is wrong."""
        try:
            data = self._store.read(f"{name}/{OFFER}", 0, MAX_SEALED_BYTES)
        except MissingError:
            return None
        seal, _, rest = data.partition(b"\n")
        if not hmac.compare_digest(seal, self._seal(rest)):
            return None
        head, _, text = rest.partition(b"\n")
        try:
            offer = from_json(_Offer, json.loads(head))
        except (ValueError, RecursionError):
            offer = None
        if offer is None or offer.format != FORMAT or _DATA.fullmatch(offer.file) is None:
            raise TransferError(f"checkpoint {self._store.shown}: {name} offers a state of another form.")
        layout = parse(text)
        if len(offer.digests) != len(cut_blocks(layout.blobs)):
            raise TransferError(f"checkpoint {self._store.shown}: {name} offers a state without its digests.")
        return offer, layout

    def _fill(self, name: str, offer: _Offer, blocks: Sequence[Block], landing: Landing, deadline: float) -> None:
        for window in windows(list(zip(blocks, offer.digests, strict=True))):
            data = read_blocks(self._store, f"{name}/{offer.file}", window)
            if time.monotonic() > deadline:
                raise TransferError(f"checkpoint {self._store.shown}: {name} could not be read in time.")
            for block, _ in window:
                landing.put(block, data[block.start - window[0][0].start :])

    def _seal(self, rest: bytes) -> bytes:
        return hmac.new(self._key, rest, hashlib.sha256).hexdigest().encode()
