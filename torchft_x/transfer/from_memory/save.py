"""``torchft_x checkpoint from-memory``: write what a group's supervisor holds in memory as a durable checkpoint.

The group's supervisor starts it when the group is given up, and names the slots in the environment. The copies
contain the destination (`transfer.from_memory.held`). Only supervisors use it.
"""

from __future__ import annotations

import time

from torchft_x import env
from torchft_x.core.training.memory_checkpoint import newest_common
from torchft_x.core.training.save_duty import Claim, Entry
from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import newest_undamaged
from torchft_x.transfer.durable.claim import read_claim
from torchft_x.transfer.durable.sealed import TornError
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.from_memory.held import KEY, HeldCheckpoint, held_in
from torchft_x.transfer.memory_slots import MemorySlot

_LOOK = 1.0  # seconds between two checks of which job may write there
_WAIT = 60.0  # seconds until the written shards must be visible


def save_held() -> str:
    """Write the checkpoint, unless one as new exists, and return a clause that says what was done.

    Raises `TorchftXError` with the reason if it can't be written.
    """
    ranks = _open_slots(env.read(env.MEMORY_SLOTS, "") or "")
    copy = newest_common([[s.state for s in slots if s.state is not None] for slots in ranks])
    if copy is None:
        raise TransferError("no copy of all ranks is complete.")
    held = [next(s for s in slots if s.state == copy) for slots in ranks]
    first = _read(held[0])
    store, name = Store(first.url), names.name(copy.step, first.writer)
    _check(store, first, len(ranks), copy)
    there = newest_undamaged(store)
    if there is not None and there.step >= copy.step:
        return f"the checkpoint of step {there.step} in {store.shown} is as new as what was held in memory"
    _claim(store, first.job)
    shard = first.outline.freeze(step=copy.step, committed_in=copy.committed_in)
    writer.write_shard(store, name, shard)
    for slot in held[1:]:  # one at a time in new memory
        other = _read(slot).outline
        writer.write_shard(store, name, other.freeze(step=copy.step, committed_in=copy.committed_in))
    writer.complete(store, name, shard, job=first.job, timeout=_WAIT)
    writer.sweep(store, name, first.keep)
    return f"step {copy.step}, which was held in memory, is saved in {store.shown}; a new job goes on from it"


def _open_slots(setting: str) -> list[list[MemorySlot]]:
    """Open the slots of all local ranks. Return them by local rank."""
    _, *ranks = setting.split(";")
    found = [[MemorySlot.open(name, 0) for name in names.split(",")] for names in ranks]
    slots = [[slot for slot in of_rank if slot is not None] for of_rank in found]
    if not slots or not all(slots):
        raise TransferError("the memory can't be opened; it is its supervisor's, on this host.")
    return slots


def _read(slot: MemorySlot) -> HeldCheckpoint:
    tree = slot.read_first(KEY)
    if tree is None:
        raise TransferError(
            "the script has no Checkpoint (--checkpoint URL of the scripts here), so nobody knows where to."
        )
    return held_in(tree)


def _check(store: Store, held: HeldCheckpoint, ranks: int, copy: State) -> None:
    if held.outline.ranks != ranks or held.outline.rank != 0:
        raise TransferError(
            f"checkpoint {store.shown}: {ranks} of the {held.outline.ranks} ranks of the group have a copy of {copy} here; "
            "a group over several nodes is not saved from memory."
        )


def _claim(store: Store, job: str) -> None:
    """Wait until `job` may write there. A dead other job is detected after some seconds. Raises `TransferError`."""
    claim = Claim(job)
    while not claim.ours:
        why = claim.seen(_entry(store), time.monotonic())
        if why:
            raise TransferError(f"checkpoint {store.shown}: {why}.")
        if not claim.ours:
            time.sleep(_LOOK)


def _entry(store: Store) -> Entry | None:
    try:
        found = read_claim(store)
    except TornError:
        return Entry("", 0, False)
    return None if found is None else Entry(*found)
