"""Checkpoint transport through a process group: from the source's tensors into the receiver's, without a snapshot.

Both sides call it at the same time, as in a collective: `send_checkpoint` returns when every receiver has the whole
state. No pickle: a JSON manifest (format/layout.py) and raw bytes. Messages in order, each with its own tag::

    header    int64 (5,): magic, step, committed_in, bytes of the manifest, whether digests follow
    manifest  uint8
    answer    int64 (1,): 1 go on, 0 no (from the receiver)
    pieces    uint8 each, at most `PIECE_BYTES`; small blobs share one (`cut`)
    digests   int64 (pieces,), if announced
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchft_x.core.types import State
from torchft_x.durations import seconds
from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import Piece
from torchft_x.transfer.format.digests import digest
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import dump, parse
from torchft_x.transfer.format.limits import BLOCK_BYTES, MAX_MANIFEST_BYTES, SMALL_BLOB_BYTES
from torchft_x.transfer.format.memory import allocate, memory_of, storage_offset_bytes, view_bytes
from torchft_x.transfer.format.rebuild import find_targets, first_paths, rebuild
from torchft_x.transfer.transport import CheckpointTransport

T = TypeVar("T")

PIECE_BYTES = 64 << 20  # bytes of one send: the deadline is checked between two of them
WINDOW = 4  # pieces in flight at a time
_MAGIC = 0x7F78_0001  # identifies this version of the transfer
_HEADER, _MANIFEST, _ANSWER, _DIGESTS, _PIECES = 1, 2, 3, 4, 5  # tags; piece i has _PIECES + i


class PGTransport(CheckpointTransport[T]):
    """Checkpoint transport that moves states with ``send`` and ``recv`` of a process group.

    Args:
        pg: any torch process group whose ranks are the replica ranks; best one of its own, because a transfer that
            fails ends the group it runs in.
        timeout: seconds or a timedelta; the longest time of a whole transfer, unless the call gives another.
        device: where the group's tensors must be: ``cpu`` for gloo, the GPU for NCCL. Tensors elsewhere go through a
            buffer there.
        state_dict: returns the state to receive into, where `recv_checkpoint` isn't given one.

    The source's state must not change until `send_checkpoint` returns, so its training waits for the receivers; with
    `HTTPTransport` it doesn't. Name and arguments are torchft's.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        timeout: float | timedelta,
        device: torch.device | str,
        state_dict: Callable[[], T] | None = None,
    ) -> None:
        self._pg = pg
        self._timeout = seconds(timeout)
        self._device = torch.device(device)
        self._state_dict = state_dict

    def __repr__(self) -> str:
        return f"<PGTransport on {self._device} over {self._pg!r}>"

    def metadata(self) -> str:
        """Return a placeholder: both sides know each other's rank."""
        return "<n/a>"

    def send_checkpoint(
        self,
        dst_ranks: list[int],
        step: int,
        state_dict: T,
        timeout: float | timedelta | None = None,
        *,
        committed_in: int = 0,
    ) -> None:
        """Send `state_dict` to these ranks, which must call `recv_checkpoint` meanwhile.

        Raises `LeafError` before anything is sent, and `TransferError` if a receiver refuses the state (after the
        others have received it), is lost, or isn't done at the deadline.
        """
        if not dst_ranks:
            return
        layout, sources = flatten(state_dict)
        text = dump(layout)
        with_digests = self._device.type == "cpu"
        line = _Line(self._pg, self._device, self._limit(timeout), f"The state of step {step}")
        header = [_MAGIC, step, committed_in, len(text), int(with_digests)]
        manifest = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self._device)
        for rank in dst_ranks:
            line.send(torch.tensor(header, device=self._device), rank, _HEADER)
            line.send(manifest, rank, _MANIFEST)
        answers = {rank: torch.zeros(1, dtype=torch.int64, device=self._device) for rank in dst_ranks}
        for rank, answer in answers.items():
            line.recv(answer, rank, _ANSWER)
        line.drain()
        willing = [rank for rank, answer in answers.items() if answer.item() == 1]
        self._send_pieces(line, willing, layout.blobs, sources, with_digests)
        refused = sorted(set(dst_ranks) - set(willing))
        if refused:
            raise TransferError(
                f"Replica rank {refused[0]} refused the state of step {step}; it says why. Its training is asked to "
                "heal again in the next quorum."
            )

    def _send_pieces(
        self, line: _Line, ranks: list[int], blobs: Sequence[int], sources: list[Tensor], with_digests: bool
    ) -> None:
        if not ranks:
            return
        memory = [_bytes_of(source) for source in sources]
        digests: list[int] = []
        for i, pieces in enumerate(cut(blobs)):
            parts = [memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes] for p in pieces]
            if len(parts) == 1:
                wire = parts[0].to(self._device)  # no copy if the tensor is on the device already
            else:
                wire = torch.cat([part.to(self._device) for part in parts])
            if with_digests:
                digests.append(digest(wire))
            for rank in ranks:
                line.send(wire, rank, _PIECES + i)
        if with_digests and digests:
            for rank in ranks:
                line.send(torch.tensor(digests), rank, _DIGESTS)
        line.drain()
        line.settle()

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta | None = None,
        *,
        committed_in: int = 0,
        into: T | None = None,
    ) -> T:
        """Receive and return the state that `src_rank` is sending.

        Tensors of `into` (else of the constructor's `state_dict`) are filled in place where path, dtype and shape
        fit; others are new tensors on the CPU.

        Raises `TransferError` with `torn`. If `torn` is set and the process group can't abort a receive (a bare torch
        group at its deadline), it may still be writing; groups of torchft_x can.
        """
        if into is None and self._state_dict is not None:
            into = self._state_dict()
        line = _Line(
            self._pg, self._device, self._limit(timeout), f"The state of step {step} of replica rank {src_rank}"
        )
        text, with_digests, found = self._recv_manifest(line, src_rank)
        try:
            if found != State(step, committed_in):
                raise TransferError(f"Replica rank {src_rank} sends its {found}, not {State(step, committed_in)}.")
            layout = parse(text)
            targets = find_targets(layout, into)
            landing = Landing(layout, targets)
        except TransferError:
            line.send(torch.zeros(1, dtype=torch.int64, device=self._device), src_rank, _ANSWER)
            line.drain()
            raise
        line.send(torch.ones(1, dtype=torch.int64, device=self._device), src_rank, _ANSWER)
        torn = landing.copies_into_targets or any(landing.in_place)
        try:
            digests = self._recv_pieces(line, src_rank, layout.blobs, landing, with_digests)
            if with_digests:
                _check(digests, line, src_rank, cut(layout.blobs), first_paths(layout, targets), self._device)
            line.settle()
            return rebuild(layout, targets, landing.finish())
        except TransferError as e:
            e.torn = torn
            raise

    def _recv_manifest(self, line: _Line, rank: int) -> tuple[bytes, bool, State]:
        header = torch.zeros(5, dtype=torch.int64, device=self._device)
        line.recv(header, rank, _HEADER)
        line.drain()
        magic, step, committed_in, length, with_digests = header.tolist()
        if magic != _MAGIC or not 0 < length <= MAX_MANIFEST_BYTES or step < 0 or committed_in < 0:
            raise TransferError(
                f"Replica rank {rank} sends something else than a state: run one version of torchft_x in all groups."
            )
        manifest = torch.zeros(length, dtype=torch.uint8, device=self._device)
        line.recv(manifest, rank, _MANIFEST)
        line.drain()
        return bytes(memory_of(manifest.cpu())), bool(with_digests), State(step, committed_in)

    @torch.no_grad()
    def _recv_pieces(
        self, line: _Line, rank: int, blobs: Sequence[int], landing: Landing, with_digests: bool
    ) -> list[int]:
        digests: list[int] = []
        for i, pieces in enumerate(cut(blobs)):
            parts = [landing.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes] for p in pieces]
            direct = len(parts) == 1 and parts[0].device.type == self._device.type
            wire = parts[0] if direct else _buffer(sum(p.nbytes for p in pieces), self._device)

            def arrived(wire: Tensor = wire, parts: list[Tensor] = parts, direct: bool = direct) -> None:
                if with_digests:
                    digests.append(digest(wire))
                if not direct:
                    for part, came in zip(parts, wire.split([part.numel() for part in parts]), strict=True):
                        part.copy_(came)

            line.recv(wire, rank, _PIECES + i, arrived)
        line.drain()
        return digests

    def disallow_checkpoint(self) -> None:
        """Do nothing: a state is offered only while `send_checkpoint` runs."""

    def shutdown(self, wait: bool = True) -> None:
        """Do nothing: the process group belongs to its owner."""

    def _limit(self, timeout: float | timedelta | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else seconds(timeout))


class _Line:
    """Queue of sends and receives, in order, with `WINDOW` of them in flight, until a deadline."""

    def __init__(self, pg: dist.ProcessGroup, device: torch.device, deadline: float, what: str) -> None:
        self._pg = pg
        self._device = device
        self._deadline = deadline  # monotonic
        self._what = what  # name of the transfer, which begins our error messages
        self._running: deque[tuple[Any, Callable[[], None] | None]] = deque()

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        self._start(lambda: self._pg.send([tensor], rank, tag), None)

    def recv(self, tensor: Tensor, rank: int, tag: int, arrived: Callable[[], None] | None = None) -> None:
        """Start a receive. `arrived` is called when the tensor is full, in the order of the calls."""
        self._start(lambda: self._pg.recv([tensor], rank, tag), arrived)

    def _start(self, action: Callable[[], Any], arrived: Callable[[], None] | None) -> None:
        while len(self._running) >= WINDOW:
            self._finish_one()
        try:
            self._running.append((action(), arrived))
        except (RuntimeError, ValueError) as e:
            raise self._error(e) from None

    def drain(self) -> None:
        """Wait until all sends and receives are done."""
        while self._running:
            self._finish_one()

    def _finish_one(self) -> None:
        work, arrived = self._running[0]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TransferError(f"{self._what} timed out: its deadline is over.")
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as e:
            raise self._error(e) from None
        self._running.popleft()
        if arrived is not None:
            arrived()

    def settle(self) -> None:
        """Wait until the accelerator's stream has run, and raise if the group has failed. Does nothing on the CPU."""
        if self._device.type == "cpu":
            return
        torch.get_device_module(self._device).current_stream().synchronize()
        errored = getattr(self._pg, "errored", None)
        error = None if errored is None else errored()
        if error is not None:
            raise self._error(error)

    def _error(self, e: Exception) -> TransferError:
        first = (str(e).strip().splitlines() or [type(e).__name__])[0]
        return TransferError(f"{self._what} could not be moved: {first}")


def cut(blobs: Sequence[int]) -> list[list[Piece]]:
    """Cut blobs of these sizes (bytes) into messages of pieces, in the order of sending. Pure.

    Large blobs come first, by themselves, at most `PIECE_BYTES` at a time, then small ones together. Both sides
    compute the same cut.
    """
    messages: list[list[Piece]] = []
    for blob, size in enumerate(blobs):
        if size >= SMALL_BLOB_BYTES:
            for offset in range(0, size, PIECE_BYTES):
                messages.append([Piece(blob, offset, 0, min(PIECE_BYTES, size - offset))])
    shared: list[Piece] = []
    end = 0
    for blob, size in enumerate(blobs):
        if size >= SMALL_BLOB_BYTES:
            continue
        if shared and end + size > BLOCK_BYTES:
            messages.append(shared)
            shared, end = [], 0
        shared.append(Piece(blob, 0, end, size))
        end += size
    return [*messages, shared] if shared else messages


def _check(
    digests: list[int], line: _Line, rank: int, messages: list[list[Piece]], paths: dict[int, str], device: torch.device
) -> None:
    """Compare our digests with the source's. Raises `TransferError`."""
    if not digests:
        return
    theirs = torch.zeros(len(digests), dtype=torch.int64, device=device)
    line.recv(theirs, rank, _DIGESTS)
    line.drain()
    for i, (ours, sent) in enumerate(zip(digests, theirs.tolist(), strict=True)):
        if ours != sent:
            names = ", ".join(paths[piece.blob] for piece in messages[i][:3])
            raise TransferError(f"The state of replica rank {rank} came broken: the digest of {names} is wrong.")


def _bytes_of(source: Tensor) -> Tensor:
    """Return a blob's source as uint8 (bytes,), without a copy if it is contiguous."""
    source = source.contiguous()
    return view_bytes(source.untyped_storage(), storage_offset_bytes(source), source.numel() * source.dtype.itemsize)


def _buffer(nbytes: int, device: torch.device) -> Tensor:
    return allocate(nbytes) if device.type == "cpu" else torch.empty(nbytes, dtype=torch.uint8, device=device)
