"""`ElasticLoader` in whole jobs: groups that join or are lost, and every way in which its position travels."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.elastic.samples import LoaderTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, Trainer, leave, lighthouse, model, near, same
from tests.util import scaled
from torchft_x import Checkpoint, ElasticLoader
from torchft_x.comm.store.create import host_store
from torchft_x.core.heal import WorldSizeMode
from torchft_x.errors import ConfigError

CONSTANT: dict[str, Any] = {"global_batch": 12, "micro_batch": 2}
LENGTH = 31


def start(groups: int, address: str, epochs: int = 3, **kwargs: Any) -> list[LoaderTrainer]:
    return run_threads(groups, lambda g: LoaderTrainer(g, address, LENGTH, epochs, CONSTANT, **kwargs))


def check(*trainers: LedgerTrainer) -> None:
    for trainer in trainers:
        trainer.check()
        assert trainer.data.position == trainers[0].data.position
    assert all(same(t.net.state_dict(), trainers[0].net.state_dict()) for t in trainers)


@pytest.mark.parametrize("kwargs", [{}, {"use_async_quorum": False}, {"vote_in_backward": False}], ids=str)
def test_a_newcomer_goes_on_at_the_others_position(kwargs: dict[str, Any]) -> None:
    goal: list[int] = []  # the last epoch, set when the newcomer has committed a step

    def train(g: int) -> None:
        trainer = everybody[g]
        while not goal or trainer.data.epoch < goal[0]:
            if trainer.one_step() and g == 2 and not goal:
                goal.append(trainer.data.position.epoch + 2)
            if not goal:
                time.sleep(0.01)
        trainer.epochs = goal[0]
        leave(trainer)

    with lighthouse(1) as address:
        everybody = start(2, address, epochs=500, **kwargs)
        run_threads(2, lambda g: [everybody[g].one_step() for _ in range(3)])
        everybody.append(LoaderTrainer(2, address, LENGTH, 500, CONSTANT, **(kwargs | {"rehearse": True})))
        run_threads(3, train)
        check(*everybody)


def test_spares_train_on_nothing_until_they_are_needed() -> None:
    fixed: dict[str, Any] = {"world_size_mode": WorldSizeMode.FIXED_WITH_SPARES, "min_replica_size": 2}
    meet = threading.Barrier(3)

    def body(g: int) -> None:
        met = False

        def hook(micro: Any) -> None:
            nonlocal met
            counted[g] += micro.counts
            if trainers[g].manager.current_step() == 2 and not met:
                met = True
                meet.wait(scaled(20))
                assert counted[2] == 0
                if g == 0:
                    trainers[0].manager.shutdown(finished=False)
                    raise InterruptedError

        try:
            trainers[g].train(hook)
        except InterruptedError:
            assert g == 0

    with lighthouse(2) as address:
        trainers, counted = start(3, address, **fixed), [0, 0, 0]
        run_threads(3, body)
        check(*trainers[1:])
        assert counted[2] > 0
        leave(*trainers[1:])


@pytest.mark.parametrize("how", ["manager", "checkpoint"])
def test_a_resumed_job_goes_on_at_the_saved_position(how: str, tmp_path: Path) -> None:
    """Another number of groups, slots and samples of a slot is fine; another data set is not."""

    def save(trainer: LoaderTrainer) -> None:
        if how == "checkpoint":
            checkpoint = Checkpoint(trainer.manager, str(tmp_path), {"model": trainer.net}, every=5, timeout=scaled(20))
            trainer.checkpoint = checkpoint  # type: ignore[attr-defined]
            checkpoint.resume()

    def run(trainer: LoaderTrainer) -> None:
        for _ in range(5):
            trainer.one_step()
            if how == "checkpoint":
                trainer.checkpoint.step()  # type: ignore[attr-defined]
        if how == "checkpoint":
            trainer.checkpoint.finish()  # type: ignore[attr-defined]

    def load(trainer: LedgerTrainer) -> None:
        if how == "manager":
            trainer.manager.load_state_dict(saved)
            trainer.net.load_state_dict(weights)
        else:
            Checkpoint(trainer.manager, str(tmp_path), {"model": trainer.net}, timeout=scaled(20)).resume()

    with lighthouse(2) as address:
        first = start(2, address)
        run_threads(2, lambda g: save(first[g]))
        run_threads(2, lambda g: run(first[g]))
        saved, weights = first[0].manager.state_dict(), first[0].net.state_dict()
        leave(*first)
    with lighthouse(1) as address:
        other = LoaderTrainer(0, address, LENGTH, 3, {"global_batch": 9, "micro_batch": 3})
        load(other)
        assert other.data.position == first[0].data.position
        assert other.train().manager.current_step() > 5
        check(other)
        leave(other)
    with lighthouse(1) as address:
        wrong = LoaderTrainer(1, address, LENGTH, 3, CONSTANT | {"seed": 1})
        with pytest.raises(ConfigError, match="the seed 0 there, 1 here"):
            load(wrong)
        leave(wrong)


def test_the_error_of_a_sample_is_raised_in_the_loop_and_its_step_is_not_committed() -> None:
    class Bad(list[int]):
        broken = True

        def __getitem__(self, i: Any) -> Any:
            if i == 5 and self.broken:
                raise KeyError("sample 5 can't be read")
            return super().__getitem__(i)

    with lighthouse(1) as address:
        bad = Bad(range(LENGTH))
        trainer = LoaderTrainer(0, address, LENGTH, 2, CONSTANT | {"dataset": bad})
        with pytest.raises(KeyError, match="sample 5"):
            trainer.train()
        trainer.optimizer.step()  # a script that goes on regardless
        assert not trainer.optimizer.committed
        bad.broken = False
        trainer.train()
        check(trainer)
        leave(trainer)


def test_groups_of_two_ranks_cut_each_slot() -> None:
    """The ranks of a group average among themselves here as FSDP does: the mean over the slot is that of its parts."""
    meets = [threading.Barrier(2), threading.Barrier(2)]
    parts: list[dict[int, torch.Tensor]] = [{}, {}]

    class Ranked(LoaderTrainer):
        def compute(self, micro: Any) -> torch.Tensor:
            group, rank = divmod(self.number, 2)
            parts[group][rank] = micro.batch
            meets[group].wait(scaled(20))
            whole = torch.cat([parts[group][0], parts[group][1]]).tolist()
            assert micro.batch.tolist() == micro.indices
            meets[group].wait(scaled(20))
            return self.model([(micro.samples[0].epoch if micro.counts else 0, i) for i in whole])  # type: ignore[no-any-return]

        number = 0

    with lighthouse(2) as address:
        stores = [host_store(HOST)[0] for _ in range(2)]

        def run(i: int) -> Ranked:
            dealing = {"global_batch": 16, "micro_batch": 4, "rank": i % 2, "ranks": 2}
            where = {"rank": i % 2, "world_size": 2, "store_port": stores[i // 2].port}
            trainer = Ranked(i // 2, address, 32, 2, dealing, **where)
            trainer.number = i
            trainer.train()
            trainer.manager.shutdown()
            return trainer

        check(*run_threads(4, run))


@pytest.mark.parametrize("kwargs", [{}, {"vote_in_backward": False}], ids=str)
def test_the_gradient_is_that_of_one_big_batch(kwargs: dict[str, Any]) -> None:
    """With a GradScaler, an allreduce of the script's own and clipping, and three groups for eight slots."""
    data = torch.randn(16, 6, generator=torch.Generator().manual_seed(5))

    def body(g: int) -> Trainer:
        trainer = Trainer(g, address, seed=0, **kwargs)
        loader = ElasticLoader(trainer.manager, data, global_batch=16, micro_batch=2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(4):
            trainer.optimizer.zero_grad(set_to_none=bool(g % 2))
            total = torch.zeros(())
            for micro in loader.step():
                loss = trainer.model(micro.batch).square().mean()
                total += loss.detach() if micro.counts else 0
                scaler.scale(loss).backward()
            trainer.manager.allreduce(total).wait()
            scaler.unscale_(trainer.optim)
            scaler.step(trainer.optim) if trainer.manager.should_commit() else None
            scaler.update()
        leave(trainer)
        return trainer

    with lighthouse(3) as address:
        trainers = run_threads(3, body)
    net = model(0)
    optim = torch.optim.AdamW(net.parameters(), lr=0.05)
    for _ in range(4):
        optim.zero_grad()
        net(data).square().mean().backward()
        optim.step()
    for trainer in trainers:
        assert same(trainer.net.state_dict(), trainers[0].net.state_dict())
        near(trainer.net.state_dict(), net.state_dict())
