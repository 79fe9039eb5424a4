"""Attempts that begin with their supervisor's copy: a real lighthouse, ranks as threads, slots of this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.torch.train.apart import LocalTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, Trainer, lighthouse, ranks_of_one, same
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.comm.store.create import host_store
from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.train.context import memory_checkpoint as module
from torchft_x.train.context.memory_checkpoint import MemoryCheckpoint

LIMIT = 1 << 24


@pytest.fixture(autouse=True)
def threads_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.open_slots

    def of_rank(options: Any) -> Any:
        module._taken.clear()
        return real(replace(options, local_rank=options.group_rank))

    monkeypatch.setattr(module, "open_slots", of_rank)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointMemory]:
    memory = CheckpointMemory(2)
    monkeypatch.setenv(env.ATTEMPT, str(env.AttemptEnv(memory_slots=memory.setting(LIMIT))))
    yield memory
    memory.close()


def memory_of(trainer: Trainer) -> MemoryCheckpoint:
    memory = trainer.manager._context.memory
    assert memory is not None
    return memory


def common(trainer: Trainer) -> State | None:
    return memory_of(trainer)._copies.common


def stop(*trainers: Trainer) -> None:
    """As they stand: nothing is waited for."""
    run_threads(len(trainers), lambda rank: trainers[rank].manager.shutdown(wait=False, finished=False))


def attempt(ranks: int, address: str, **kwargs: Any) -> contextlib.AbstractContextManager[list[Trainer]]:
    return ranks_of_one(ranks, address, stop, **kwargs)


def train_until_held(trainers: list[Trainer], steps: int = 1) -> None:
    """All ranks step, the same number of times, until the group holds a copy of some step from that one on."""

    def held() -> bool:
        run_threads(len(trainers), lambda rank: trainers[rank].step())
        return (common(trainers[0]) or State()).step >= steps

    wait_for(held, 20, "a copy that all ranks hold")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_next_attempt_goes_on_from_the_copy(ranks: int, memory: CheckpointMemory, address: str) -> None:
    with attempt(ranks, address, seed=1) as first:
        train_until_held(first, 5)
        copy = common(first[0])
        assert copy is not None
        histories = [t.history for t in first]
        before = [t.optim.state_dict()["state"][0]["step"].item() for t in first]
    with attempt(ranks, address, seed=2) as second:
        run_threads(ranks, lambda rank: second[rank].step())
        assert [t.manager.current_step() for t in second] == [second[0].manager.current_step()] * ranks
        began = second[0].manager.current_step() - 1
        assert copy.step <= began <= copy.step + 20  # or a later one, that was complete and not yet told
        for rank, trainer in enumerate(second):
            run_threads(ranks, lambda r, all=second: all[r].run_to(began + 3))
            for step in range(began + 1, min(began + 3, max(histories[rank])) + 1):
                assert same(trainer.history[step], histories[rank][step]), (rank, step)
            assert trainer.optim.state_dict()["state"][0]["step"].item() >= min(before[rank], began + 3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_who_leaves_before_the_end_goes_on_from_its_last_step(
    ranks: int, memory: CheckpointMemory, address: str
) -> None:
    with attempt(ranks, address, seed=1) as first:
        run_threads(ranks, lambda rank: first[rank].run_to(7))  # no copy was due
        left = [t.history[7] for t in first]
    with attempt(ranks, address, seed=2) as second:
        run_threads(ranks, lambda rank: second[rank].step())
        assert [t.manager.current_step() for t in second] == [8] * ranks
        run_threads(ranks, lambda rank: second[rank].optimizer.zero_grad())
    with attempt(ranks, address, seed=3) as third:  # a step that was begun is given up
        run_threads(ranks, lambda rank: third[rank].step())
        assert third[0].manager.current_step() in (8, 9)
    assert left


def test_what_the_script_has_loaded_counts_if_it_is_newer(memory: CheckpointMemory, address: str) -> None:
    with attempt(1, address) as (first,):
        train_until_held([first])
        far = {"step": 5000, "batches_committed": 5000, "committed_in": first.manager.state_dict()["committed_in"]}
    with attempt(1, address) as (second,):
        second.manager.load_state_dict(far)
        second.step()
        assert second.manager.current_step() == 5001


def test_another_model_s_copy_is_dropped_with_a_sentence_and_the_attempt_after_that_begins_anew(
    memory: CheckpointMemory, address: str
) -> None:
    with attempt(1, address) as (first,):
        train_until_held([first])
    sentence = r"can't be loaded \(.* next start goes on without it"
    with attempt(1, address, net=torch.nn.Linear(6, 2)) as (second,), pytest.raises(TransferError, match=sentence):
        second.step()
    with attempt(1, address, net=torch.nn.Linear(6, 2)) as (third,):
        third.step()
        assert third.manager.current_step() == 1


def test_a_state_without_room_is_not_copied_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = CheckpointMemory(1)
    monkeypatch.setenv(env.ATTEMPT, str(env.AttemptEnv(memory_slots=memory.setting(8192))))
    with lighthouse() as address, attempt(1, address) as (trainer,):
        wait_for(lambda: trainer.step() and memory_of(trainer)._off, 20, "the end of copying")
        trainer.run_to(trainer.manager.current_step() + 5)
    said = [r.getMessage() for r in caplog.records if "no copy of the state" in r.getMessage()]
    assert len(said) == 1
    assert "a copy of it in memory may take 0 MiB. If all groups die at once" in said[0]
    memory.close()


def test_ranks_that_hold_different_copies_go_on_from_one_that_both_hold(memory: CheckpointMemory, address: str) -> None:
    with attempt(2, address) as first:
        train_until_held(first, 3)
        newest = max(s for s in memory_of(first[1])._holds if s is not None)
        index = memory_of(first[1])._holds.index(newest)
        memory_of(first[1])._slots[index].erase()  # it died while it copied
    with attempt(2, address) as second:
        run_threads(2, lambda rank: second[rank].step())
        steps = [t.manager.current_step() for t in second]
        assert steps[0] == steps[1]
        assert steps[0] - 1 != newest.step


def test_a_heal_that_breaks_off_leaves_the_copy(
    memory: CheckpointMemory, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The source dies in the middle of it, and nobody else is there: the group goes on from where it began."""
    with attempt(1, address) as (first,):
        train_until_held([first], 3)
    far = first.manager.current_step() + 50  # where it stopped is the machine's affair
    monkeypatch.delenv(env.ATTEMPT)
    other = Trainer(1, address)
    other.run_to(far)
    monkeypatch.setenv(env.ATTEMPT, str(env.AttemptEnv(memory_slots=memory.setting(LIMIT))))
    with attempt(1, address) as (second,):

        def breaks(*args: Any, **kwargs: Any) -> Any:
            for parameter in second.net.parameters():
                parameter.data.fill_(7.0)
            other.manager.shutdown(wait=False, finished=False)
            error = TransferError("the source is gone")
            error.torn = True
            raise error

        monkeypatch.setattr(second.manager._context.transport, "recv_checkpoint", breaks)
        stays = [True]

        def others(rank: int) -> None:
            if rank == 0:
                while not second.step():
                    pass
                stays.clear()
            while rank == 1 and stays and not other.manager._closed:
                with contextlib.suppress(Exception):
                    other.step()

        run_threads(2, others)
        began = second.manager.current_step()
        assert 3 < began < far
        if began in first.history:
            assert same(second.history[began], first.history[began])


@pytest.mark.parametrize("algorithm", ["diloco", "local_sgd"])
def test_a_group_that_trains_apart_goes_on_from_its_last_exchange(
    algorithm: str, memory: CheckpointMemory, address: str
) -> None:
    """Its inner steps since then are lost, and nothing else: the copy is of no other moment."""
    with apart(address, algorithm, seed=1) as first:

        def held() -> bool:
            first.step()
            return (common(first) or State()).step >= 3

        wait_for(held, 20, "a copy after an exchange")
        before = {n: [t.clone() for t in weights] for n, weights in first.history.items()}
    with apart(address, algorithm, seed=2) as second:
        began = second.loop.exchanges
        assert began >= 2
        assert all(map(torch.equal, second.common(), before[began]))
        assert all(map(torch.equal, [p.detach() for p in second.net.parameters()], before[began]))
        while second.loop.exchanges < began + 1:
            second.step()


@contextlib.contextmanager
def apart(address: str, algorithm: str, seed: int) -> Iterator[Any]:
    """One attempt of a group that trains apart; the end comes in the middle of a period."""
    store, where = host_store(HOST, scaled(10))
    trainer = LocalTrainer(0, address, algorithm=algorithm, seed=seed, manager={"store_port": where.port})
    try:
        with trainer.loop:
            yield trainer
    finally:
        trainer.manager.shutdown(wait=False, finished=False)
        del store


def test_a_copy_that_waits_for_the_processor_is_not_dearer(
    memory: CheckpointMemory, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a load of 15 a copy was taken to last for half a second, and the next one came after 100 s."""
    write = module.MemorySlot.write

    def later(slot: Any, *args: Any) -> bool:
        time.sleep(0.3)
        return bool(write(slot, *args))

    monkeypatch.setattr(module.MemorySlot, "write", later)
    with attempt(1, address) as (trainer,):
        train_until_held([trainer], 3)
        assert memory_of(trainer)._schedule.due(64, 0.05)  # 3.2 s apart; after 0.3 s of work it would be 51 s


def test_a_group_that_heals_takes_no_memory_of_the_source_s_own(
    memory: CheckpointMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is offered in the slot that does not hold the group's copy, and copies go on when it is back."""
    monkeypatch.setattr("torchft_x.transfer.snapshot.CUT_GRACE", 0.0)
    monkeypatch.setattr(module, "_SEALED", scaled(10))
    with lighthouse() as address, attempt(1, address) as (first,):
        train_until_held([first], 3)
        lent: list[tuple[State | None, list[State | None]]] = []
        own: list[int] = []
        monkeypatch.setattr("torchft_x.transfer.snapshot.allocate_buffer", lambda n, **_: own.append(n))
        lend = module.MemorySlot.lend

        def seen(slot: Any, nbytes: int) -> Any:
            buffer = lend(slot, nbytes)
            lent.append((common(first), [s.state for s in memory_of(first)._slots]))
            return buffer

        monkeypatch.setattr(module.MemorySlot, "lend", seen)
        monkeypatch.delenv(env.ATTEMPT)
        second = Trainer(1, address)
        steps = [True]

        def train(rank: int) -> None:
            while rank == 0 and steps:
                first.step()
            if rank == 1:
                second.run_to(first.manager.current_step() + 5)
                second.manager.shutdown(wait=False, finished=False)  # else the first one waits for it
                steps.clear()

        run_threads(2, train)
        assert lent
        assert all(held in slots for held, slots in lent)
        assert own == []
        before = common(first) or State()
        train_until_held([first], before.step + 1)
