"""Receives blocks into a landing: from a connection, with their digests, or from the source's memory."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping

import torch

from torchft_x.transfer.format.blocks import Block, cut_blocks, digest
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import allocate, memory_of, populate
from torchft_x.transfer.http.client import Source
from torchft_x.transfer.http.wire import DIGEST_BYTES
from torchft_x.transfer.shared_memory import SharedFile


class TransferProgress:
    """Progress of a fetch, in bytes. Has no reference to the memory, so that it may be kept."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.done = 0  # bytes in their places, approximate: a lost addition among several threads does no harm


class Transfer:
    """The blocks of a fetch, and the memory that receives them.

    Args:
        paths: for a blob's index the path of its first tensor, for messages.
    """

    def __init__(self, layout: Layout, landing: Landing, paths: Mapping[int, str]) -> None:
        self.landing = landing
        self.blocks = cut_blocks(layout.blobs)
        self.torn = False  # whether memory of the caller was written to; set by any stream, never unset
        self._paths = paths
        self.progress = TransferProgress(sum(layout.blobs))

    def holds(self, index: int) -> str:
        """Return paths of some tensors in a block, for messages."""
        return ", ".join(self._paths[p.blob] for p in self.blocks[index].pieces[:3])


class Receiver:
    """Buffers with which one stream receives blocks."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        landing = transfer.landing
        on_cpu = all(m.device.type == "cpu" for m in landing.memory)
        # Shared blocks, and blocks for an accelerator, are received here first.
        self._scratch = allocate(BLOCK_BYTES, pinned=not on_cpu)
        self._scratch_memory = memory_of(self._scratch)
        self._digest = memoryview(bytearray(DIGEST_BYTES))

    def receive(self, source: Source, connection: http.client.HTTPConnection, first: int, end: int) -> Iterator[int]:
        """Receive blocks first..end-1, and yield the digest of each when it is in its place.

        Raises `TransferError`, or one of `client.BROKEN`.
        """
        transfer = self._transfer
        blocks = transfer.blocks[first:end]
        path = f"/snapshot/{source.manifest.snapshot}/{first}/{end}"
        response = source.get(connection, path)
        expected = sum(b.nbytes + DIGEST_BYTES for b in blocks)
        if response.status != http.client.OK or response.length != expected:
            raise source.error(
                f"its answer ({response.status}) for blocks {first} to {end - 1} has {response.length} bytes, "
                f"expected {expected}."
            )
        body = _Body(response, connection.sock)
        for index, block in enumerate(blocks, first):
            memory = self._place(block)
            body.fill([memory, self._digest], self._left(source, index))
            value = self._check(source, memory, index)
            self._scatter(block)
            self._transfer.progress.done += block.nbytes
            yield value
        response.close()

    def copy(self, source: Source, file: SharedFile, first: int, end: int) -> Iterator[None]:
        """Copy blocks first..end-1 from memory. Raises `TransferError` after the deadline, OSError if unreadable."""
        for index in range(first, end):
            self._left(source, index)
            block = self._transfer.blocks[index]
            file.read(self._place(block), block.start)
            self._scatter(block)
            self._transfer.progress.done += block.nbytes
            yield

    def _left(self, source: Source, index: int) -> float:
        """Return the seconds until the deadline. Raises `TransferError` after it."""
        left = source.left()
        if left <= 0:
            raise source.error(f"timed out at block {index} of {len(self._transfer.blocks)}.")
        return left

    def _place(self, block: Block) -> memoryview:
        """Return memory to receive a block into: its place in the state, or scratch memory if that is not one piece."""
        transfer, piece = self._transfer, block.pieces[0]
        view = self._lands(block)
        if view is None:
            return self._scratch_memory[: block.nbytes]
        first, end = piece.blob_offset, piece.blob_offset + piece.nbytes
        if transfer.landing.in_place[piece.blob]:
            transfer.torn = True
        else:
            populate(transfer.landing.memory[piece.blob][first:end])
        return view[first:end]

    def _lands(self, block: Block) -> memoryview | None:
        """Return the memory of the block's blob, if the block is part of one blob on the CPU; otherwise None."""
        return self._transfer.landing.view(block.pieces[0].blob) if len(block.pieces) == 1 else None

    def _check(self, source: Source, data: memoryview, index: int) -> int:
        """Compare a block with the digest that came after it. Raises `TransferError`."""
        value = digest(data)
        if value != int.from_bytes(self._digest, "big"):
            raise source.error(f"the digest of block {index} is wrong, it holds {self._transfer.holds(index)}.")
        return value

    @torch.no_grad()
    def _scatter(self, block: Block) -> None:
        """Copy a block from scratch memory to its places, if it was received there."""
        if self._lands(block) is not None:
            return
        landing, scratch = self._transfer.landing, self._scratch_memory
        for p in block.pieces:
            if landing.in_place[p.blob]:
                self._transfer.torn = True
            view = landing.view(p.blob)
            if view is not None:
                view[p.blob_offset : p.blob_offset + p.nbytes] = scratch[p.block_offset : p.block_offset + p.nbytes]
            else:
                arrived = self._scratch[p.block_offset : p.block_offset + p.nbytes]
                landing.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes].copy_(arrived)


class _Body:
    """The bytes of an answer: first those that came with its head, then the socket's, in as few calls as possible."""

    def __init__(self, response: http.client.HTTPResponse, connection: socket.socket) -> None:
        self._response = response
        self._socket = connection
        self._ahead = min(len(response.peek()), response.length or 0)  # bytes that were read with the head

    def fill(self, parts: list[memoryview], left: float) -> None:
        """Fill all of `parts`, in `left` seconds. Raises one of `client.BROKEN`."""
        parts = list(parts)
        self._socket.settimeout(left)
        while parts:
            if self._ahead:
                n = self._response.readinto(parts[0][: self._ahead])
                self._ahead -= n
            else:
                n = self._socket.recvmsg_into(parts)[0]
            if n == 0:
                raise ConnectionError("the source closed the connection in the middle")
            while parts and n >= len(parts[0]):
                n -= len(parts.pop(0))
            if n:
                parts[0] = parts[0][n:]
