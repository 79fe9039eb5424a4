"""Index and manifest: what is believed of them."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
import torch

from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.sealed import DamagedError, Manifest, TornError
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.format.layout import Layout

NAME = names.name(3, "a")
SHARD = freeze({"w": torch.ones(100, 3), "b": torch.ones(2)}, step=3, rank=0, ranks=1)
INDEX = sealed.seal(SHARD.index(NAME), SHARD.layout)
MANIFEST = sealed.seal(
    Manifest(str(NAME), 3, 0, 1, SHARD.structure, "job", ((sealed.sha256(INDEX), SHARD.nbytes),)), SHARD.whole
)


def resealed(data: bytes, change: Any) -> bytes:
    """The same file with another head, and a right sum."""
    _, head, layout = data.removesuffix(b"\n").split(b"\n")
    value = json.loads(head)
    change(value)
    rest = json.dumps(value).encode() + b"\n" + layout + b"\n"
    return sealed.sha256(rest).encode() + b"\n" + rest


def test_they_are_read_as_they_were_written() -> None:
    index, layout = sealed.open_index(INDEX)
    assert index == SHARD.index(NAME)
    assert index.pieces == ((0, (0, 0)), (1, (0,)))
    assert layout == SHARD.layout
    manifest, whole = sealed.open_manifest(MANIFEST)
    assert manifest.shards == ((sealed.sha256(INDEX), SHARD.nbytes),)
    assert whole == SHARD.whole


BOTH = pytest.mark.parametrize(
    ("data", "read"), [(INDEX, sealed.open_index), (MANIFEST, sealed.open_manifest)], ids=["index", "manifest"]
)


@BOTH
def test_cut_anywhere_it_is_torn(data: bytes, read: Any) -> None:
    for n in range(0, len(data), 7):
        with pytest.raises(TornError):
            read(data[:n])


@BOTH
def test_any_changed_byte_is_noticed(data: bytes, read: Any) -> None:
    for n in random.Random(1).sample(range(len(data)), 200):
        with pytest.raises((DamagedError, TornError)):
            read(data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :])


def test_one_is_not_the_other() -> None:
    with pytest.raises(TransferError, match="kind 'Manifest'"):
        sealed.open_index(MANIFEST)


SECOND: list[Any] = [[0, [0]], [1, [-1]], [1, [1 << 60]], [1, [0] * 65], [1], [1, "0"]]  # piece
LIES: dict[str, list[Any]] = {
    "rank": [1, -1, True, None],
    "ranks": [0, 1 << 40],
    "step": [-1, "3", 1.0],
    "committed_in": [1 << 63],
    "nbytes": [10, 1 << 62],
    "digests": [[], [-1], [1 << 32], {"0": 1}],
    "pieces": [[], *([[0, [0, 0]], piece] for piece in SECOND)],
    "structure": [None, "x" * 1000],
    "save": [3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in LIES for value in LIES[name]], ids=str)
def test_an_index_that_lies_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TransferError, match=r"^it has "):
        sealed.open_index(resealed(INDEX, lambda head: head.update({name: value})))


@pytest.mark.parametrize(
    "shards", [[], [["0" * 64, 0]] * 2, [["0" * 63, 0]], [["0" * 64, -1]], [["0" * 64]], [[1, 2]], "x", [["0" * 64, 1 << 60]]]
)  # fmt: skip
def test_a_manifest_that_lies_is_refused(shards: Any) -> None:
    with pytest.raises(TransferError, match=r"^it has "):
        sealed.open_manifest(resealed(MANIFEST, lambda head: head.update(shards=shards)))


def test_a_manifest_of_tensors_that_are_not_whole() -> None:
    flat = SHARD.whole.tensors[0]
    head = sealed.open_manifest(MANIFEST)[0]
    turned = dataclasses.replace(flat, shape=(3, 100), stride=(1, 3))
    with pytest.raises(TransferError, match="not whole"):
        sealed.open_manifest(sealed.seal(head, Layout(["T", 0], (turned,), (1200,))))
    with pytest.raises(TransferError, match="two tensors in one place"):
        sealed.open_manifest(sealed.seal(head, Layout(["list", [["T", 0], ["T", 1]]], (flat, flat), (1200,))))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"format": 1}', b"1" * 100_000, b"\xff"])
def test_heads_that_are_none(text: bytes) -> None:
    rest = text + b"\n{}\n"
    with pytest.raises(TransferError):
        sealed.open_index(sealed.sha256(rest).encode() + b"\n" + rest)
