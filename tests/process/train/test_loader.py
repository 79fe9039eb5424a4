"""Batches that worker processes load ahead: the right ones, each loaded once, by workers that are never restarted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.elastic.samples import Drawn, LoaderTrainer, plain, run_of
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse, same
from tests.util import scaled, wait_for
from torchft_x.train.elastic.prefetch import Prefetch
from torchft_x.train.elastic.sampler import Sample

WORKERS: dict[str, Any] = {"num_workers": 2, "loader": {"multiprocessing_context": "fork"}}


def following(start: int, size: int = 2) -> Iterator[list[Sample]]:
    return (run_of(i, size) for i in count(start, size))


def loads(log: Path) -> list[tuple[int, int]]:
    """Return process and index of each sample loaded."""
    return [(int(pid), int(i)) for pid, i in map(str.split, log.read_text().splitlines())]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.extended)])
def test_workers_load_what_the_training_process_would(context: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    random.seed(3)
    torch.manual_seed(3)
    before = random.getstate(), torch.get_rng_state()
    prefetch = Prefetch(Drawn(1000, log), 7, plain, 2, {"multiprocessing_context": context})
    alone = Prefetch(Drawn(1000), 7, plain, 0, {})
    mine = [alone.get(run_of(i, 2), []) for i in range(0, 40, 2)]
    got = [prefetch.get(run_of(i, 2), following(i + 2)) for i in range(0, 20, 2)]
    got += [prefetch.get(run_of(i, 2), following(i + 2)) for i in range(30, 40, 2)]  # the plan changes
    debt = [run_of(i, 2) for i in range(20, 30, 2)]  # partly loaded before the change
    got += [prefetch.get(b, chain(debt[i + 1 :], following(40))) for i, b in enumerate(debt)]
    expected = mine[:10] + mine[15:] + mine[10:15]
    assert [[(s[0], s[2]) for s in batch] for batch in got] == [[(s[0], s[2]) for s in batch] for batch in expected]
    assert len({pid for pid, _ in loads(log)}) == 2
    wanted = [i for _, i in loads(log) if i < 40]
    assert sorted(wanted) == list(range(40)), "a batch was loaded twice"
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    prefetch.close()


def test_an_error_in_a_worker_is_the_error_of_its_batch() -> None:
    prefetch = Prefetch(Drawn(100, bad=7), 7, plain, 2, {"multiprocessing_context": "fork"})
    assert [s[0] for s in prefetch.get(run_of(4, 2), following(6))] == [4, 5]
    # Batch (6, 7) was loaded ahead and fails, but another group computes it.
    for start in (8, 0, 10):
        assert [s[0] for s in prefetch.get(run_of(start, 2), following(start + 2))] == [start, start + 1]
    with pytest.raises(KeyError, match="sample 7"):
        prefetch.get(run_of(6, 2), following(8))
    for start in (8, 12):
        assert [s[0] for s in prefetch.get(run_of(start, 2), following(start + 2))] == [start, start + 1]
    prefetch.close()


def test_close_ends_persistent_workers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    prefetch = Prefetch(Drawn(100, log), 7, plain, 2, {"multiprocessing_context": "fork", "persistent_workers": True})
    for start in range(0, 20, 2):
        prefetch.get(run_of(start, 2), following(start + 2))
    workers = {pid for pid, _ in loads(log)}
    assert len(workers) == 2
    prefetch.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 20, "the end of the workers")


def test_no_worker_is_restarted_when_a_group_is_lost_and_another_joins(tmp_path: Path) -> None:
    meet = threading.Barrier(2)
    dealing = {"global_batch": 12, "micro_batch": 2, **WORKERS}
    logs = [tmp_path / f"log{g}" for g in range(3)]

    def start(g: int) -> LoaderTrainer:
        return LoaderTrainer(g, address, 240, 2, {**dealing, "dataset": Indices(240, logs[g])})

    def body(g: int) -> None:
        met = False

        def hook(micro: Any) -> None:
            nonlocal met
            if trainers[g].manager.current_step() == 3 and not met:
                met = True
                meet.wait(scaled(20))
                if g == 1:
                    trainers[1].manager.shutdown(finished=False)
                    trainers[1].loader.close()
                    raise InterruptedError

        try:
            trainers[g].train(hook)
        except InterruptedError:
            trainers.append(start(2))
            trainers[2].train()

    with lighthouse(2) as address:
        trainers = run_threads(2, start)
        run_threads(2, body)
        ends = trainers[0], trainers[2]
        for trainer in ends:
            trainer.check()
            trainer.loader.close()
        assert same(ends[0].net.state_dict(), ends[1].net.state_dict())
        assert [len({pid for pid, _ in loads(log)}) for log in logs] == [2, 2, 2]
        leave(*ends)


class Indices(Drawn):
    """`Drawn` without the random numbers."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]
