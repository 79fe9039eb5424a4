"""Turns frozen shards into a complete checkpoint: each rank writes its own, and rank 0 then writes the manifest."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from torchft_x.errors import DeadlineError, TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.catalog import all_of, complete_ones, newest_undamaged, read_manifest
from torchft_x.transfer.durable.names import MANIFEST, Name
from torchft_x.transfer.durable.pieces import Box, check_tiling
from torchft_x.transfer.durable.sealed import Index, Manifest, TornError
from torchft_x.transfer.durable.shard import Shard
from torchft_x.transfer.durable.store import MissingError, Store
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.memory import memory_of

WRITE_BYTES = 8 << 20  # bytes passed to the storage at a time
_LOOK_AGAIN = 0.05, 1.0  # seconds between two checks for the other ranks' shards: the first pause, the longest


def write_shard(store: Store, save: Name, shard: Shard) -> None:
    """Write a shard's data, then its index, so that an index implies its data. Raises `TransferError`."""
    store.write(f"{save}/{names.data_file(shard.rank)}", _parts(shard))
    store.write(f"{save}/{names.index_file(shard.rank)}", [sealed.seal(shard.index(save), shard.layout)])


def _parts(shard: Shard) -> Iterator[Any]:
    if shard.nbytes:
        view = memory_of(shard.memory)[: shard.nbytes]
        for start in range(0, shard.nbytes, WRITE_BYTES):
            yield view[start : start + WRITE_BYTES]


def complete(
    store: Store, save: Name, shard: Shard, *, job: str, timeout: float, stop: threading.Event | None = None
) -> None:
    """Wait for all ranks' shards, then write the manifest. Called on rank 0, after its own shard is written.

    Raises `DeadlineError` after `timeout` seconds, and `TransferError` if the storage fails, the shards don't belong
    together, or another job has saved a later step meanwhile. `stop`: set by another thread, ends the wait.
    """
    deadline = time.monotonic() + timeout
    pause, most = _LOOK_AGAIN
    stop = stop or threading.Event()
    found: dict[int, tuple[Index, Layout, str]] = {}
    while len(found) < shard.ranks:
        sizes = store.children(str(save))
        for rank in range(shard.ranks):
            if rank not in found and (index := _look(store, save, rank, sizes)) is not None:
                found[rank] = index
        missing = [rank for rank in range(shard.ranks) if rank not in found]
        if missing and stop.wait(pause):
            raise TransferError(f"checkpoint {store.shown}: {save} is given up, as training ends.")
        if missing and time.monotonic() > deadline:
            raise DeadlineError(
                f"checkpoint {store.shown}: {save} is not complete after {timeout:g} s: rank {missing[0]} of "
                f"{shard.ranks} has not written its shard; its own message says why."
            )
        pause = min(2 * pause, most)
    _check(shard, found)
    top = newest_undamaged(store)
    if top is not None and top.step > save.step and read_manifest(store, top)[0].job != job:  # ours: a new lineage
        raise TransferError(
            f"checkpoint {store.shown}: it holds step {top.step} by now, and this is step {save.step}; another job "
            "writes there. Give each job a URL of its own."
        )
    shards = tuple((found[rank][2], found[rank][0].nbytes) for rank in range(shard.ranks))
    manifest = Manifest(str(save), shard.step, shard.committed_in, shard.ranks, shard.structure, job, shards)
    store.write(f"{save}/{MANIFEST}", [sealed.seal(manifest, shard.whole)])


def _look(store: Store, save: Name, rank: int, sizes: dict[str, int | None]) -> tuple[Index, Layout, str] | None:
    """Return the index of a rank, if it is whole and its data exists; else None. Raises `TransferError`."""
    if names.index_file(rank) not in sizes:
        return None
    try:
        data = store.read(f"{save}/{names.index_file(rank)}", 0, sealed.MAX_SEALED_BYTES)
        index, layout = sealed.open_index(data)
    except (MissingError, TornError):  # it is being written
        return None
    return (index, layout, sealed.sha256(data)) if sizes.get(names.data_file(rank)) == index.nbytes else None


def _check(shard: Shard, found: dict[int, tuple[Index, Layout, str]]) -> None:
    """Raise `TransferError` unless these shards are one state."""
    boxes: list[list[Box]] = [[] for _ in shard.whole.tensors]
    for rank, (index, layout, _) in found.items():
        ours = (shard.step, shard.committed_in, shard.ranks, shard.structure, rank)
        if (index.step, index.committed_in, index.ranks, index.structure, index.rank) != ours:
            raise TransferError(
                f"the shard of rank {rank} is of another state than that of rank 0 ({index.save}, {index.ranks} ranks): "
                "save the same state dict on all ranks of a group, at the same step."
            )
        for (i, offset), spec in zip(index.pieces, layout.tensors, strict=True):
            boxes[i].append(Box(offset, spec.shape))
    for i, spec in enumerate(shard.whole.tensors):
        if spec.blob is not None:
            check_tiling(boxes[i], spec.shape, f"tensor {i}")


def sweep(store: Store, newest: Name, keep: int) -> None:
    """Remove checkpoints not needed once `newest` is complete: all but the newest `keep`, and dead writers' remains.

    Raises `TransferError`.
    """
    found = all_of(store)
    whole = complete_ones(store, [n for n in found if n <= newest], most=keep)
    for name in names.outdated(found, whole, newest, keep):
        store.remove(f"{name}/{MANIFEST}")  # removed first: no reader takes a half for a whole
        store.remove(str(name))
