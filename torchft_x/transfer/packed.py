"""A small state dict as one piece of bytes, and back."""

from __future__ import annotations

import struct
from typing import Any

from torchft_x.errors import TransferError
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import dump, parse
from torchft_x.transfer.format.memory import memory_of
from torchft_x.transfer.format.rebuild import find_targets, rebuild

_HEAD = struct.Struct("<Q")  # bytes of the manifest


def pack(state: Any) -> bytes:
    """Return a state dict as bytes. Raises `LeafError` naming the path of a value that can't be sent."""
    layout, sources = flatten(state)
    manifest = dump(layout)
    return b"".join([_HEAD.pack(len(manifest)), manifest, *(bytes(memory_of(s.contiguous())) for s in sources)])


def unpack(data: bytes) -> Any:
    """Return the state dict of `pack`. Raises `TransferError` for anything else."""
    if len(data) < _HEAD.size or len(data) < _HEAD.size + _HEAD.unpack_from(data)[0]:
        raise TransferError(f"a packed state of {len(data)} bytes is cut off.")
    start = _HEAD.size + _HEAD.unpack_from(data)[0]
    layout = parse(data[_HEAD.size : start])
    if sum(layout.blobs) != len(data) - start:
        raise TransferError(f"a packed state has {len(data) - start} bytes of tensors, {sum(layout.blobs)} are listed.")
    targets = find_targets(layout)
    landing = Landing(layout, targets)
    for blob, size in enumerate(layout.blobs):
        view = landing.view(blob)
        assert view is not None, "no target is on a device"
        view[:] = data[start : start + size]
        start += size
    return rebuild(layout, targets, landing.finish())
