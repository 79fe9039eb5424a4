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
from typing import Any

from torchft_x.errors import LeafError, TransferError
from torchft_x.transfer.format import layout as layouts
from torchft_x.transfer.format.blocks import cut_blocks, place_blobs
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.limits import MAX_DIMS, MAX_MANIFEST_BYTES, MAX_RANKS, MAX_STATE_BYTES
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
    pieces: list[tuple[int, list[int]]]  # for each tensor of the layout: its index in the state, and its offset there
    digests: list[int]  # digests of the blocks
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
    shards: list[tuple[str, int]]  # for each rank: sha256 of its index, bytes of its data


def seal(head: Index | Manifest, layout: Layout) -> bytes:
    kind = {"format": FORMAT, "kind": type(head).__name__}
    text = json.dumps({**kind, **asdict(head)}, separators=(",", ":")).encode("ascii")
    rest = text + b"\n" + layouts.dump(layout) + b"\n"
    if len(rest) > MAX_SEALED_BYTES - 100:
        raise LeafError(
            f"state dict: its description takes {len(rest)} bytes, at most {MAX_SEALED_BYTES} can be saved."
        )
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_index(data: bytes) -> tuple[Index, Layout]:
    """Return the head and layout of an index.

    Raises `TornError`, `DamagedError`, or `TransferError` for a file that is whole but invalid.
    """
    value, layout = _open(data, "Index")
    pieces, digests = _list(value, "pieces"), _list(value, "digests")
    head = Index(
        **_common(value), rank=_int(value, "rank", MAX_RANKS), pieces=[_piece(p) for p in pieces], digests=digests,
        nbytes=_int(value, "nbytes", 2 * MAX_STATE_BYTES),
    )  # fmt: skip
    _require(head.rank < head.ranks, "a rank that its group doesn't have")
    _require(len(pieces) == len(layout.tensors), "another number of pieces than of tensors")
    _require(len({i for i, _ in head.pieces}) == len(pieces), "two pieces of one tensor")
    _require(head.nbytes == place_blobs(layout.blobs)[1], "data of another length than its tensors need")
    _require(len(digests) == len(cut_blocks(layout.blobs)), "another number of digests than of blocks")
    _require(all(type(d) is int and 0 <= d < 1 << 32 for d in digests), "a digest that is none")
    return head, layout


def open_manifest(data: bytes) -> tuple[Manifest, Layout]:
    """Return the head and layout of a manifest.

    Raises `TornError`, `DamagedError`, or `TransferError` for a file that is whole but invalid.
    """
    value, layout = _open(data, "Manifest")
    shards = []
    for row in _list(value, "shards"):
        fine = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and len(row[0]) == 64
        _require(fine and type(row[1]) is int and 0 <= row[1] <= 2 * MAX_STATE_BYTES, "a shard of broken form")
        shards.append((row[0], row[1]))
    head = Manifest(**_common(value), job=_text(value, "job"), shards=shards)
    _require(len(shards) == head.ranks, "another number of shards than of ranks")
    for spec in layout.tensors:
        whole = spec.blob is None or (spec.offset == 0 and spec.end == layout.blobs[spec.blob])
        _require(whole and spec.stride == contiguous_stride(spec.shape), "a tensor that is not whole")
    used = [spec.blob for spec in layout.tensors if spec.blob is not None]
    _require(len(used) == len(set(used)), "two tensors in one place")
    return head, layout


def _open(data: bytes, kind: str) -> tuple[dict[str, Any], Layout]:
    seal, _, rest = data.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != seal:
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
    _require(value.get("kind") == kind, f"kind {str(value.get('kind'))[:60]!r}")
    return value, layouts.parse(layout.removesuffix(b"\n"))


def _common(value: dict[str, Any]) -> dict[str, Any]:
    ranks = _int(value, "ranks", MAX_RANKS)
    _require(ranks > 0, "no ranks")
    numbers = {name: _int(value, name, 1 << 62) for name in ("step", "committed_in")}
    return {**numbers, "ranks": ranks, **{name: _text(value, name) for name in ("save", "structure")}}


def _piece(row: Any) -> tuple[int, list[int]]:
    fine = isinstance(row, list) and len(row) == 2 and isinstance(row[1], list) and len(row[1]) <= MAX_DIMS
    numbers = [row[0], *row[1]] if fine else [None]
    _require(all(type(n) is int and 0 <= n <= MAX_STATE_BYTES for n in numbers), f"a piece {str(row)[:60]}")
    return row[0], row[1]


def _int(value: dict[str, Any], name: str, most: int) -> int:
    found = value.get(name)
    if type(found) is not int or not 0 <= found <= most:
        raise TransferError(f"it has {name} {str(found)[:60]!r}.")
    return found


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or len(found) > 200:
        raise TransferError(f"it has {name} {str(found)[:60]!r}.")
    return found


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list):
        raise TransferError(f"it has {name} {str(found)[:60]!r}.")
    return found


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise TransferError(f"it has {what}.")
