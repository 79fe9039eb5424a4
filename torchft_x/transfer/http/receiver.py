"""Receives blocks into a landing: from a connection, with their digests, or from the source's memory."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from torchft_x.transfer.format.blocks import Block, cut_blocks, digest
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import allocate, memory_of, populate
from torchft_x.transfer.http.client import Source
from torchft_x.transfer.http.wire import DIGEST_BYTES
from torchft_x.transfer.shared_memory import SharedFile


class Arrival:
    """What is to arrive, and where.

    Args:
        paths: of a blob's index the path of its first tensor, for people.
        digests: whether to ask for digests and compare them.
    """

    def __init__(self, layout: Layout, landing: Landing, paths: Mapping[int, str], *, digests: bool) -> None:
        self.landing = landing
        self.blocks = cut_blocks(layout.blobs)
        self.nbytes = sum(layout.blobs)
        self.digests = digests
        self.torn = False  # whether memory of the caller was written to; set by any stream, never unset
        self._paths = paths

    def holds(self, index: int) -> str:
        """Paths of some tensors in a block."""
        return ", ".join(self._paths[p.blob] for p in self.blocks[index].pieces[:3])


class Receiver:
    """What one stream needs to receive blocks."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        landing = arrival.landing
        on_cpu = all(m.device.type == "cpu" for m in landing.memory)
        # Shared blocks, and what goes to an accelerator, arrive here first.
        self._scratch = allocate(BLOCK_BYTES, pinned=not on_cpu)
        self._scratch_memory = memory_of(self._scratch)
        self._digest = bytearray(DIGEST_BYTES)

    def receive(
        self, source: Source, connection: http.client.HTTPConnection, snapshot: str, first: int, end: int
    ) -> Iterator[int]:
        """Receive blocks first..end-1, and yield the digest of each when it is in its place (0 without digests).

        Raises `TransferError`, or one of `client.BROKEN`.
        """
        arrival = self._arrival
        blocks = arrival.blocks[first:end]
        sock = connection.sock
        response = source.get(
            connection, f"/snapshot/{snapshot}/{first}/{end}" + ("" if arrival.digests else "?digest=0")
        )
        expected = sum(b.nbytes for b in blocks) + (len(blocks) * DIGEST_BYTES if arrival.digests else 0)
        if response.status != http.client.OK or response.length != expected:
            raise source.error(
                f"its answer ({response.status}) for blocks {first} to {end - 1} has {response.length} bytes, "
                f"expected {expected}."
            )
        for index, block in enumerate(blocks, first):
            sock.settimeout(self._left(source, index))
            data, memory = self._place(block)
            _read_into(response, memory)
            value = self._check(source, response, data, index) if arrival.digests else 0
            self._scatter(block)
            yield value

    def copy(self, source: Source, file: SharedFile, first: int, end: int) -> Iterator[None]:
        """Copy blocks first..end-1 from memory. Raises `TransferError` behind the deadline, OSError if it can't be read."""
        for index in range(first, end):
            self._left(source, index)
            block = self._arrival.blocks[index]
            _, memory = self._place(block)
            file.read(memory, block.start)
            self._scatter(block)
            yield

    def _left(self, source: Source, index: int) -> float:
        """Seconds until the deadline. Raises `TransferError` behind it."""
        left = source.left()
        if left <= 0:
            raise source.error(f"timed out at block {index} of {len(self._arrival.blocks)}.")
        return left

    def _place(self, block: Block) -> tuple[Tensor, memoryview]:
        """Where a block is received: its place in the state, or scratch memory if it is not in one place there."""
        arrival, piece = self._arrival, block.pieces[0]
        if not self._lands(block):
            return self._scratch[: block.nbytes], self._scratch_memory[: block.nbytes]
        data = arrival.landing.memory[piece.blob][piece.blob_offset : piece.blob_offset + piece.nbytes]
        if arrival.landing.in_place[piece.blob]:
            arrival.torn = True
        else:
            populate(data)
        return data, memory_of(data)

    def _lands(self, block: Block) -> bool:
        """Whether it is received where it belongs: it is part of one blob, on the CPU."""
        pieces = block.pieces
        return len(pieces) == 1 and self._arrival.landing.memory[pieces[0].blob].device.type == "cpu"

    def _check(self, source: Source, response: http.client.HTTPResponse, data: Tensor, index: int) -> int:
        """Receive a block's digest and compare. Raises `TransferError`."""
        _read_into(response, memoryview(self._digest))
        value = digest(data)
        if value != int.from_bytes(self._digest, "big"):
            raise source.error(f"the digest of block {index} is wrong, it holds {self._arrival.holds(index)}.")
        return value

    @torch.no_grad()
    def _scatter(self, block: Block) -> None:
        """From scratch memory to its places, if it was received there."""
        if self._lands(block):
            return
        landing = self._arrival.landing
        for p in block.pieces:
            self._arrival.torn = self._arrival.torn or landing.in_place[p.blob]
            arrived = self._scratch[p.block_offset : p.block_offset + p.nbytes]
            landing.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes].copy_(arrived)


def _read_into(response: http.client.HTTPResponse, memory: memoryview) -> None:
    done = 0
    while done < len(memory):
        n = response.readinto(memory[done:])
        if n == 0:
            raise ConnectionError("the source closed the connection in the middle")
        done += n
