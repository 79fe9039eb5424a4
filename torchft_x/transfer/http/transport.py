"""Checkpoint transport over HTTP: a frozen snapshot at the source, parallel streams into the receiver's own tensors.

No pickle: a JSON manifest (format/layout.py) and raw bytes, each block with a digest. The source's training is
stopped only while the snapshot is copied; it never waits for a reader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from torchft_x import env, net, tls
from torchft_x.core.types import State
from torchft_x.durations import seconds
from torchft_x.errors import ConfigError, TokenError, TransferError
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import parse
from torchft_x.transfer.format.limits import MAX_STREAMS
from torchft_x.transfer.format.rebuild import find_targets, first_paths, rebuild
from torchft_x.transfer.http.client import Source
from torchft_x.transfer.http.fetch import Fetch
from torchft_x.transfer.http.memory_copy import copy_from_memory
from torchft_x.transfer.http.receiver import Transfer, TransferProgress
from torchft_x.transfer.http.server import CheckpointServer
from torchft_x.transfer.snapshot import Lender, SnapshotStore
from torchft_x.transfer.transport import CheckpointTransport

T = TypeVar("T")
log = logging.getLogger(__name__)

DEFAULT_STREAMS = 2
STRIPED_BYTES = 64 << 20  # bytes of a state; a smaller one has come from one source before others have joined


class HTTPTransport(CheckpointTransport[T]):
    """Transport over HTTP: fetches states, serves this process's from construction on a free port of all interfaces.

    Args:
        timeout: longest time (seconds or a timedelta) that a reader may make no progress, and that
            `shutdown(wait=True)` may take.
        num_chunks: parallel streams of `recv_checkpoint`, 0 for the default.
        host: the name or address by which others reach this process (default: the result of
            `torchft_x.net.advertise_host`).
        token: needed to read, and sent when reading (default TORCHFT_X_TOKEN or TORCHFT_X_TOKEN_FILE; "" for none).
        shared_memory: whether processes of one host and user may read snapshots from memory, and this process reads
            theirs. Without it, and between hosts, all data goes over the network.
    """

    def __init__(
        self,
        timeout: float | timedelta = 60.0,
        num_chunks: int = 0,
        *,
        host: str | None = None,
        token: str | None = None,
        shared_memory: bool = True,
    ) -> None:
        if not 0 <= num_chunks <= MAX_STREAMS:
            raise ConfigError(f"num_chunks={num_chunks} is not between 0 and {MAX_STREAMS}.")
        self._timeout = seconds(timeout)
        self._streams = num_chunks or DEFAULT_STREAMS
        self._host = net.advertise_host(host)
        self._token = tls.use_token(env.read_token() if token is None else token) or None
        if self._token is not None and not (self._token.isascii() and self._token.isprintable()):
            raise ConfigError("token: it has characters an HTTP header can't carry; use printable ASCII.")
        self._token = tls.tensor_token(self._token)
        self._shared = shared_memory
        self._store = SnapshotStore(shared=shared_memory)  # our snapshots, for others
        self._server = CheckpointServer(self._store, token=self._token, stall_timeout=self._timeout)
        self._progress: TransferProgress | None = None  # of the newest state that this process has begun to copy
        self._address = f"{Source(net.Address(self._host, self._server.port), None, 0.0).url}/checkpoint/"

    def __repr__(self) -> str:
        return f"<HTTPTransport {self.address()}, {self._streams} streams>"

    def address(self) -> str:
        """Return ``http://host:port/checkpoint/``; ``https://`` with TLS."""
        return self._address

    def metadata(self) -> str:
        return self.address()

    def borrow_from(self, lender: Lender) -> None:
        """Use the lender's memory for snapshots, if it has some. Call it before the first `send_checkpoint`."""
        self._store.lender = lender

    def send_checkpoint(
        self,
        dst_ranks: list[int],
        step: int,
        state_dict: T,
        timeout: float | timedelta = 60.0,
        *,
        committed_in: int = 0,
    ) -> None:
        """Freeze `state_dict` and return; readers come later. `dst_ranks` may read the snapshot until the next call.

        They may do so even after `disallow_checkpoint`. `timeout` is not used, since nothing blocks. Raises
        `LeafError` naming the path of a value that can't be sent; the previous snapshot then stays.
        """
        self._store.freeze(State(step, committed_in), state_dict, owed=len(dst_ranks))

    def mirror_checkpoint(self, step: int, state_dict: T, *, committed_in: int = 0) -> None:
        """Offer a state as a further source, unless it is too small to be fetched from several sources."""
        self._store.freeze(State(step, committed_in), state_dict, owed=0, least=STRIPED_BYTES)

    def prepare(self, state_dict: T) -> None:
        """Allocate and touch the memory for a state like this one, on a thread of its own."""
        self._store.prepare(state_dict)

    def progress(self) -> tuple[int, bool] | None:
        return self._store.progress()

    def received(self) -> tuple[int, int] | None:
        progress = self._progress
        return None if progress is None else (min(progress.done, progress.nbytes), progress.nbytes)

    def disallow_checkpoint(self) -> None:
        self._store.disallow()

    def allow_checkpoint(self, step: int) -> None:
        """Let anybody read the snapshot of `step` again. Raises `ConfigError` if the newest is of another step."""
        self._store.allow(step)

    def shutdown(self, wait: bool = True) -> None:
        """Refuse new readers, let those in progress finish (`wait`), close, free the port. May be called again."""
        self._server.close(self._timeout if wait else 0.0)

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta,
        *,
        committed_in: int = 0,
        into: T | None = None,
        mirrors: Sequence[Callable[[], str]] = (),
    ) -> T:
        """Return the state of the process whose `metadata()` is given; wait for it up to `timeout`.

        `mirrors`: each returns the `metadata()` of another process that offers the same state, and is called on a
        thread of its own. Mirrors send a part of a large state, and replace a source that is gone; a mirror whose
        bytes differ is not used.

        Tensors of `into` are filled in place where path, dtype and shape fit, and are part of the result; without
        `into` they are new tensors on the CPU. No thread writes to them after this has returned or raised. Raises
        `TransferError` with `torn`, or `TokenError`.
        """
        deadline = time.monotonic() + seconds(timeout)
        state = State(step, committed_in)
        self._progress = None
        source = Source.parse(metadata, self._token, deadline)
        try:
            source.ask(state)
            try:
                layout = parse(source.manifest.text)
                targets = find_targets(layout, into)
                landing = Landing(layout, targets)
            except TransferError as e:
                raise source.error(str(e)) from None
            transfer = Transfer(layout, landing, first_paths(layout, targets))
            self._progress = transfer.progress
            try:
                self._receive(source, [partial(self._source, locate, deadline) for locate in mirrors], state, transfer)
                transfer.torn = transfer.torn or landing.copies_into_targets
                return rebuild(layout, targets, landing.finish())
            except TransferError as e:
                e.torn = transfer.torn
                raise
            except Exception as e:
                if isinstance(e, TokenError) and not transfer.torn:
                    raise
                error = source.error(f"replica rank {src_rank} could not be received ({e!r}).")
                error.torn = transfer.torn
                raise error from e
        finally:
            source.close()

    def _source(self, locate: Callable[[], str], deadline: float) -> Source:
        return Source.parse(locate(), self._token, deadline)

    def _receive(
        self, source: Source, mirrors: Sequence[Callable[[], Source]], state: State, transfer: Transfer
    ) -> None:
        """Receive all blocks from memory if the source shares it with this process, otherwise over the network."""
        if self._shared and copy_from_memory(source, transfer, self._streams):
            return
        pays = transfer.progress.nbytes >= STRIPED_BYTES
        Fetch(source, state, transfer, self._streams).run(mirrors if pays else ())


class PGTransport(HTTPTransport[T]):
    """`HTTPTransport` with the arguments of torchft's transport through a process group.

    torchft sends the live tensors through `pg` while the source's step waits. Here a copy is sent, into the receiver's
    tensors where they fit, and the source goes on.

    Args:
        pg: not used.
        timeout: seconds or a timedelta; the longest time of a whole transfer, unless the call gives another.
        device: not used.
        state_dict: returns the state to receive into, where `recv_checkpoint` isn't given one.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup | None,
        timeout: float | timedelta,
        device: torch.device | str,
        state_dict: Callable[[], T] | None = None,
    ) -> None:
        super().__init__(timeout)
        self._state_dict = state_dict
        log.warning(
            "PGTransport sends the state over HTTP, not through the process group; HTTPTransport does the same."
        )

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta | None = None,
        *,
        into: T | None = None,
        **more: Any,
    ) -> T:
        """Receive the state as `HTTPTransport.recv_checkpoint` does, by default within the constructor's timeout."""
        if into is None and self._state_dict is not None:
            into = self._state_dict()
        limit = self._timeout if timeout is None else seconds(timeout)
        return super().recv_checkpoint(src_rank, metadata, step, limit, into=into, **more)
