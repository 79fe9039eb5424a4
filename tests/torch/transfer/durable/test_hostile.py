"""Checkpoints that are damaged, half there, or made to mislead. Nothing of them is believed but what was checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.transfer.durable.saving import load, save
from tests.torch.transfer.durable.test_sealed import resealed
from torchft_x.errors import TransferError
from torchft_x.transfer.durable import sealed, writer
from torchft_x.transfer.durable.catalog import all_of, newest
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.sealed import DamagedError
from torchft_x.transfer.durable.store import MissingError, Store

STATE = {"w": torch.randn(600, 600), "b": torch.randn(5), "n": 3}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def both(store: Store) -> tuple[Name, Name]:
    return save(store, STATE, 1), save(store, STATE, 2, ranks=2)


def forge(folder: Path, change_index: Any = None, change_manifest: Any = None, layout: Any = None) -> None:
    """Change an index or a manifest, and all sums that have to do with it."""
    index = folder / "shard-00000.json"
    data = index.read_bytes()
    if change_index is not None:
        data = resealed(data, change_index)
    if layout is not None:
        head, old = sealed.open_index(data)
        data = sealed.seal(dataclasses.replace(head, **layout[1]), layout[0](old))
    index.write_bytes(data)
    manifest = folder / "manifest.json"

    def change(head: dict[str, Any]) -> None:
        head["shards"][0][0] = sealed.sha256(data)
        if change_manifest is not None:
            change_manifest(head)

    manifest.write_bytes(resealed(manifest.read_bytes(), change))


def test_a_damaged_newest_one_is_said_and_not_skipped(store: Store, tmp_path: Path) -> None:
    """To go on from an older one in silence would throw steps away."""
    _, name = both(store)
    for file in sorted(file for file, size in store.children(str(name)).items() if size):
        path = tmp_path / str(name) / file
        data = path.read_bytes()
        harms = {
            "gone": None,
            "empty": b"",
            "half": data[: len(data) // 2],
            "longer": data + b"x",
            "flipped": flip(data),
        }
        for harm, harmed in harms.items():
            path.write_bytes(harmed) if harmed is not None else path.unlink()
            if file == "manifest.json" and harm in ("gone", "empty", "half"):
                continue  # this is what a writer that was killed leaves: the test below
            with pytest.raises(
                DamagedError, match=rf"{name}/{file}.*; remove its folder to go on from the checkpoint before"
            ):
                load(store)
        path.write_bytes(data)
    assert newest(store) == name


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("length", [None, 0, 0.5, 0.99])
def test_one_whose_writer_was_killed_is_not_the_newest(store: Store, tmp_path: Path, length: float | None) -> None:
    older, name = both(store)
    path = tmp_path / str(name) / "manifest.json"
    data = path.read_bytes()
    path.unlink() if length is None else path.write_bytes(data[: int(length * len(data))])
    assert newest(store) == older


def test_a_damaged_one_does_not_keep_others_from_being_saved(store: Store, tmp_path: Path) -> None:
    _, name = both(store)
    (tmp_path / str(name) / "shard-00000.data").unlink()
    later = save(store, STATE, 3)
    assert newest(store) == later
    writer.sweep(store, later, 2)
    assert [found.step for found in all_of(store)] == [1, 3]


def test_one_that_is_removed_while_it_is_looked_at_is_no_damaged_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one that is kept: a newer one is complete, though the list of a moment ago does not have it."""
    save(store, STATE, 1)
    original = Store.children

    def children(self: Store, folder: str = "") -> dict[str, int | None]:
        found = original(self, folder)
        if folder == "":
            monkeypatch.undo()
            writer.sweep(store, save(store, STATE, 2, ranks=2), 1)
        return found

    monkeypatch.setattr(Store, "children", children)
    assert newest(store) == Name(2, "0-a")


def test_a_store_that_lists_what_is_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    older, name = both(store)
    original = Store.read

    def read(self: Store, file: str, start: int, end: int) -> bytes:
        if file.startswith(str(name)):
            raise MissingError("gone")
        return original(self, file, start, end)

    monkeypatch.setattr(Store, "read", read)
    assert newest(store) == older


def test_a_read_that_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, name = both(store)
    original = Store.read
    into = {"w": torch.zeros(600, 600), "b": torch.zeros(5), "n": 0}
    monkeypatch.setattr(Store, "read", lambda self, file, start, end: original(self, file, start, end)[:100])
    with pytest.raises(TransferError):
        Saved(store, name)
    monkeypatch.undo()
    saved = Saved(store, name)
    monkeypatch.setattr(Store, "read", lambda self, file, start, end: original(self, file, start, end)[:1000])
    with pytest.raises(TransferError, match=r"shard-00000\.data ends after 1000 of ") as caught:
        saved.load(into)
    assert caught.value.torn
    with pytest.raises(TransferError, match="ends after"):
        saved.verify()


def test_a_newer_format_is_said_and_not_skipped(store: Store, tmp_path: Path) -> None:
    """To resume from an older one would throw steps away in silence."""
    _, name = both(store)
    path = tmp_path / str(name) / "manifest.json"
    path.write_bytes(resealed(path.read_bytes(), lambda head: head.update(format="torchft_x/durable/9")))
    with pytest.raises(TransferError, match=r"step-00000002.*manifest\.json: .*durable/9.*another version wrote it"):
        newest(store)


def test_a_manifest_that_was_copied_from_another_checkpoint(store: Store, tmp_path: Path) -> None:
    older, name = both(store)
    (tmp_path / str(name) / "manifest.json").write_bytes((tmp_path / str(older) / "manifest.json").read_bytes())
    with pytest.raises(TransferError, match="it is the manifest of step-00000001"):
        newest(store)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 3}, {"ranks": 2}, {"structure": "x"}, {"committed_in": 9}, {"save": "step-00000009.a"},
        {"pieces": [[0, [1, 0]], [1, [0]]]},  # beyond the end, and a gap before
        {"pieces": [[1, [0, 0]], [0, [0]]]},  # exchanged
        {"pieces": [[0, [0, 0]], [7, [0]]]},  # of a tensor that isn't there
        {"pieces": [[0, [0]], [1, [0]]]},  # of other dimensions
    ],
    ids=str,
)  # fmt: skip
def test_an_index_that_lies_is_refused_before_data_is_read(
    store: Store, tmp_path: Path, change: dict[str, Any]
) -> None:
    name = save(store, STATE, 1)
    forge(tmp_path / str(name), change_index=lambda head: head.update(change))
    with pytest.raises(TransferError, match="step-00000001"):
        Saved(store, name)


def test_a_layout_of_other_dtypes_is_refused(store: Store, tmp_path: Path) -> None:
    name = save(store, STATE, 1)

    def other(layout: Any) -> Any:
        specs = [dataclasses.replace(s, dtype=torch.int32) for s in layout.tensors]
        return dataclasses.replace(layout, tensors=tuple(specs))

    forge(tmp_path / str(name), layout=(other, {}))
    with pytest.raises(TransferError, match=r"a tensor 0 of torch\.int32 that the manifest doesn't have"):
        Saved(store, name)


def test_two_shards_that_hold_the_same(store: Store, tmp_path: Path) -> None:
    name = save(store, STATE, 2, ranks=2)
    folder = tmp_path / str(name)
    head, layout = sealed.open_index((folder / "shard-00000.json").read_bytes())
    twice = sealed.seal(dataclasses.replace(head, rank=1), layout)
    (folder / "shard-00001.json").write_bytes(twice)
    (folder / "shard-00001.data").write_bytes((folder / "shard-00000.data").read_bytes())
    forge(folder, change_manifest=lambda m: m["shards"].__setitem__(1, [sealed.sha256(twice), head.nbytes]))
    with pytest.raises(TransferError, match="w: its 2 pieces don't cover"):
        Saved(store, name)


def test_a_tensor_larger_than_the_machine(store: Store, tmp_path: Path) -> None:
    """A manifest of a terabyte costs nothing but a sentence."""
    name = save(store, {"w": torch.zeros(1)}, 1)
    folder = tmp_path / str(name)
    huge = 1 << 38
    layout = dataclasses.replace(
        sealed.open_manifest((folder / "manifest.json").read_bytes())[1],
        tensors=(sealed.layouts.TensorSpec(torch.float32, (huge,), (1,), 0, 0),),
        blobs=(4 * huge,),
    )
    head = sealed.open_manifest((folder / "manifest.json").read_bytes())[0]
    (folder / "manifest.json").write_bytes(sealed.seal(head, layout))
    with pytest.raises(TransferError, match="don't cover"):
        Saved(store, name)
