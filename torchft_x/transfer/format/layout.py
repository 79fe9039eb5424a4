"""Layout of a state dict: a tree of values in JSON, a table of tensors, a list of blobs. Pure.

A *blob* is a range of bytes that is sent as it is. Tensors that overlap in memory (tied weights, expanded and
transposed views) share one blob, so shared memory is sent once and is shared again in the rebuilt state. A tensor
with holes in its memory is packed. Tensors become plain tensors (detached) or `Parameter`s; a DTensor stands for its
local shard.

Wire form (`dump` and `parse`), JSON::

    {"format": "torchft_x/2", "byteorder": "little", "blobs": [bytes, ...], "tree": node,
     "tensors": [[dtype, shape, stride, blob or null, offset in bytes], ...]}

    node: a scalar of leaves.py | ["dict", [[key, node], ...]] | ["odict", [[key, node], ...], node of _metadata]
        | ["list" | "tuple", [node, ...]] | ["set" | "fset", [key, ...]] | ["leaf", name, node]
        | ["ddict", name of the factory, node of a dict]
        | ["T", i] | ["P", i, requires_grad] | ["D", i, [placement, ...], [global size, ...]]   # i-th of "tensors"
    key: a scalar | ["ktuple", [key, ...]]
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch

from torchft_x.errors import LeafError, TransferError
from torchft_x.transfer.format.leaves import DTYPES, Node
from torchft_x.transfer.format.limits import (
    ALIGNMENT,
    MAX_DIMS,
    MAX_MANIFEST_BYTES,
    MAX_NODES,
    MAX_STATE_BYTES,
)
from torchft_x.transfer.format.memory import extent, uncollected

FORMAT = "torchft_x/2"


_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES.values()}
_LONG = re.compile(rb"\d{21}")  # a number that we never write, or part of a text


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor over a blob. Strides are in elements, `offset` in bytes from the blob's start."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    blob: int | None  # None: it has no elements
    offset: int

    @property
    def end(self) -> int:
        """Byte of the blob at which the last element ends."""
        return self.offset + extent(self.shape, self.stride, self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Layout:
    """A state dict without the bytes of its tensors."""

    tree: Node
    tensors: tuple[TensorSpec, ...]  # in the order of the tree
    blobs: tuple[int, ...]  # size of each blob in bytes


@uncollected
def dump(layout: Layout) -> bytes:
    """Return the manifest of a layout. Raises `LeafError` if it is larger than receivers accept."""
    text = json.dumps(
        {
            "format": FORMAT,
            "byteorder": sys.byteorder,
            "blobs": layout.blobs,
            "tensors": [[_NAMES[s.dtype], s.shape, s.stride, s.blob, s.offset] for s in layout.tensors],
            "tree": layout.tree,
        },
        separators=(",", ":"),
    ).encode("ascii")
    if len(text) > MAX_MANIFEST_BYTES:
        raise LeafError(
            f"state dict: its structure takes {len(text)} bytes, at most {MAX_MANIFEST_BYTES} can be sent; "
            "keep large data in tensors."
        )
    return text


@uncollected
def parse(text: bytes) -> Layout:
    """Return the layout of a manifest from another process.

    Checks the tables completely, so that every view made from them stays inside its blob. The tree is checked when it
    is walked (`rebuild`). Raises `TransferError`.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise TransferError(f"the manifest has {len(text)} bytes, more than {MAX_MANIFEST_BYTES}.")
    try:
        value = json.loads(text, parse_int=_parse_int if _LONG.search(text) else None)
    except (ValueError, RecursionError) as e:
        raise TransferError(f"the manifest is not valid JSON ({str(e)[:100]}).") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise TransferError(f"the manifest has format {str(found)[:60]!r}, this process reads {FORMAT!r}.")
    if value.get("byteorder") != sys.byteorder:
        raise TransferError(f"the source's byte order is {str(value.get('byteorder'))[:20]!r}, ours {sys.byteorder!r}.")
    blobs = _list(value, "blobs")
    _require(all(_is_size(n) and n > 0 for n in blobs) and sum(blobs) <= MAX_STATE_BYTES, "blobs of impossible size")
    specs = tuple(_parse_spec(row, blobs) for row in _list(value, "tensors"))
    _check_cover(specs, blobs)
    return Layout(value.get("tree"), specs, tuple(blobs))


def _parse_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a number is too long")
    return int(text)


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise TransferError(f"the manifest has {what}.")


def _list(value: dict[str, Any], name: str) -> list[Any]:
    rows = value.get(name)
    if not isinstance(rows, list) or len(rows) > MAX_NODES:
        raise TransferError(f"the manifest has no proper list {name!r}.")
    return rows


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_STATE_BYTES


def _parse_spec(row: Any, blobs: list[int]) -> TensorSpec:
    if not (isinstance(row, list) and len(row) == 5 and isinstance(row[0], str) and row[0] in DTYPES):
        raise TransferError(f"the manifest has a tensor {str(row)[:80]!r} of unknown form or dtype.")
    name, shape, stride, blob, offset = row
    dtype = DTYPES[name]
    for sizes in (shape, stride):
        if not (isinstance(sizes, list) and len(sizes) <= MAX_DIMS and all(map(_is_size, sizes))):
            raise TransferError(f"the manifest has a tensor with sizes {str(sizes)[:80]!r}.")
    if len(shape) != len(stride) or not _is_size(offset):
        raise TransferError(f"the manifest has a tensor {str(row)[:80]!r} of broken form.")
    elements = 1
    for size in shape:
        elements *= size or 1
        if elements * dtype.itemsize > MAX_STATE_BYTES:
            raise TransferError(f"the manifest has a tensor of impossible shape {str(shape)[:80]}.")
    spec = TensorSpec(dtype, tuple(shape), tuple(stride), blob, offset)
    if 0 in shape:
        _require(blob is None and offset == 0, "an empty tensor with bytes")
    else:
        _require(type(blob) is int and 0 <= blob < len(blobs), "a tensor without a blob")
        if offset % dtype.itemsize or spec.end > blobs[blob]:
            what = f"a tensor of {str(shape)[:80]} {name} that does not fit its blob of {blobs[blob]} bytes"
            raise TransferError(f"the manifest has {what}.")
    return spec


def _check_cover(specs: tuple[TensorSpec, ...], blobs: list[int]) -> None:
    """Raise unless each blob is exactly as long as its tensors need, so that no receiver allocates unused bytes."""
    first = list(blobs)
    end = [0] * len(blobs)
    for spec in specs:
        if spec.blob is not None:
            first[spec.blob] = min(first[spec.blob], spec.offset)
            end[spec.blob] = max(end[spec.blob], spec.end)
    for i, size in enumerate(blobs):
        if end[i] != size or first[i] >= ALIGNMENT:
            raise TransferError(f"the manifest has a blob of {size} bytes whose tensors need {end[i]}.")
