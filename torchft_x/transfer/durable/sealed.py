"""Index of a shard, and manifest of a checkpoint: a head and a layout under one sha256. Pure.

A file has three lines. So a file that was torn in the middle of a write is recognised on every kind of storage, and
distinguished from one that was damaged later, which has all three::

    sha256 of the rest, as hex digits
    head, JSON
    layout, JSON: that of format/layout.py

The layout of an index is that of one rank's pieces; its tree is their list. The layout of a manifest has the tree of
the whole state, and each tensor in it as whole and contiguous.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TypeVar

from torchft_x.errors import LeafError, TransferError
from torchft_x.json_values import from_json
from torchft_x.transfer.format import layout as layouts
from torchft_x.transfer.format.blocks import cut_blocks, place_blobs
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.limits import MAX_MANIFEST_BYTES, MAX_RANKS, MAX_STATE_BYTES
from torchft_x.transfer.format.memory import contiguous_stride

FORMAT = "torchft_x/durable/2"
MAX_SEALED_BYTES = 4 * MAX_MANIFEST_BYTES  # bytes, with the digests of a shard of some TB


GO_ON = "remove its folder to go on from the checkpoint before"


class TornError(TransferError):
    """Raised for a file of which only the beginning exists: it is being written, or its writer was killed."""


class DamagedError(TransferError):
    """Raised if a file of a complete checkpoint was changed after it was written, or is missing."""


@dataclass(frozen=True)
class Index:
    """Head of an index: the data of one rank."""

    save: str  # name of the checkpoint
    step: int
    committed_in: int
    rank: int
    ranks: int
    structure: str  # digest of paths, dtypes and shapes of the whole state; the same in all shards
    pieces: tuple[
        tuple[int, tuple[int, ...]], ...
    ]  # for each tensor of the layout: its index in the state, and its offset there
    digests: tuple[int, ...]  # digests of the blocks
    nbytes: int  # bytes of the data


@dataclass(frozen=True)
class Manifest:
    """Head of a manifest: the checkpoint's state, its writer and its shards."""

    save: str
    step: int
    committed_in: int
    ranks: int
    structure: str
    job: str  # the job that wrote it
    shards: tuple[tuple[str, int], ...]  # for each rank: sha256 of its index, bytes of its data


Head = TypeVar("Head", Index, Manifest)


def seal(head: Index | Manifest, layout: Layout) -> bytes:
    kind = {"format": FORMAT, "kind": type(head).__name__}
    text = json.dumps({**kind, **asdict(head)}, separators=(",", ":")).encode("ascii")
    rest = text + b"\n" + layouts.dump(layout) + b"\n"
    if len(rest) > MAX_SEALED_BYTES - 100:
        raise LeafError(
            f"state dict: its description takes {len(rest)} bytes, at most {MAX_SEALED_BYTES} can be saved."
        )
    return sha256(rest).encode() + b"\n" + rest


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_index(data: bytes) -> tuple[Index, Layout]:
    """Return the head and layout of an index.

    Raises `TornError`, `DamagedError`, or `TransferError` for a file that is whole but invalid.
    """
    head, layout = _open(data, Index)
    _require(0 <= head.rank < head.ranks, "a rank that its group doesn't have")
    _require(len(head.pieces) == len(layout.tensors), "another number of pieces than of tensors")
    for (i, offset), spec in zip(head.pieces, layout.tensors, strict=True):
        fine = len(offset) == len(spec.shape) and all(0 <= n <= MAX_STATE_BYTES for n in (i, *offset))
        _require(fine, f"a piece of tensor {i} of broken form")
    _require(len({i for i, _ in head.pieces}) == len(head.pieces), "two pieces of one tensor")
    _require(head.nbytes == place_blobs(layout.blobs)[1], "data of another length than its tensors need")
    _require(len(head.digests) == len(cut_blocks(layout.blobs)), "another number of digests than of blocks")
    _require(all(0 <= d < 1 << 32 for d in head.digests), "a digest that is none")
    return head, layout


def open_manifest(data: bytes) -> tuple[Manifest, Layout]:
    """Return the head and layout of a manifest.

    Raises `TornError`, `DamagedError`, or `TransferError` for a file that is whole but invalid.
    """
    head, layout = _open(data, Manifest)
    _require(len(head.shards) == head.ranks, "another number of shards than of ranks")
    _require(
        all(len(seal) == 64 and 0 <= n <= 2 * MAX_STATE_BYTES for seal, n in head.shards), "a shard of broken form"
    )
    for spec in layout.tensors:
        whole = spec.blob is None or (spec.offset == 0 and spec.end == layout.blobs[spec.blob])
        _require(whole and spec.stride == contiguous_stride(spec.shape), "a tensor that is not whole")
    used = [spec.blob for spec in layout.tensors if spec.blob is not None]
    _require(len(used) == len(set(used)), "two tensors in one place")
    return head, layout


def _open(data: bytes, kind: type[Head]) -> tuple[Head, Layout]:
    seal, _, rest = data.partition(b"\n")
    if sha256(rest).encode() != seal:
        if rest.count(b"\n") < 2:
            raise TornError("it is not whole: its end is missing.")
        raise DamagedError(f"it is damaged: its sha256 is wrong; {GO_ON}.")
    text, _, layout = rest.partition(b"\n")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TransferError(f"it is not valid JSON ({str(e)[:100]}).") from None
    found = value.get("format") if isinstance(value, dict) else None
    if found != FORMAT:
        raise TransferError(
            f"it has format {str(found)[:60]!r}, and this torchft_x reads {FORMAT!r}; another version wrote it."
        )
    _require(value.get("kind") == kind.__name__, f"kind {str(value.get('kind'))[:60]!r}")
    try:
        head = from_json(kind, value)
    except ValueError as e:
        raise TransferError(f"it has a head of broken form ({str(e)[:100]}).") from None
    _require(0 < head.ranks <= MAX_RANKS, f"ranks {head.ranks}")
    _require(min(head.step, head.committed_in) >= 0 and max(head.step, head.committed_in) < 1 << 62, "no proper step")
    _require(len(head.structure) == 64, "no digest of its structure")
    return head, layouts.parse(layout.removesuffix(b"\n"))


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise TransferError(f"it has {what}.")
