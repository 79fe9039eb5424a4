"""Checkpoints of whole jobs: a real lighthouse, groups as threads."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, lighthouse, same
from tests.util import scaled
from torchft_x import Checkpoint
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

WAIT = scaled(20)


class Saving(Trainer):
    def begin(self, url: str) -> bool:
        parts = {"model": self.net, "optim": self.optim}
        self.checkpoint = Checkpoint(self.manager, url, parts, every=5, timeout=WAIT)
        return self.checkpoint.resume()

    def go_to(self, step: int) -> None:
        while self.manager.current_step() < step:
            self.step()
            self.checkpoint.step()


def start(groups: int, addr: str, url: str) -> list[Saving]:
    trainers = run_threads(groups, lambda g: Saving(g, addr, seed=g))
    run_threads(groups, lambda g: trainers[g].begin(url))
    return trainers


def test_a_job_is_saved_by_one_group_and_resumed_by_another_number(tmp_path: Path) -> None:
    url = str(tmp_path)
    with lighthouse(min_replicas=2) as addr:
        first = start(2, addr, url)
        run_threads(2, lambda g: first[g].go_to(7))
        run_threads(2, lambda g: first[g].checkpoint.finish())
        run_threads(2, lambda g: first[g].manager.shutdown())
    found = [name for name in Store(url).children() if name.startswith("step-")]
    assert len(found) == 2
    assert all("group_0" in name for name in found)
    assert newest(Store(url)).step == 7  # type: ignore[union-attr]
    with lighthouse(min_replicas=3) as addr:
        second = start(3, addr, url)
        assert [t.manager.current_step() for t in second] == [7, 7, 7]
        assert all(same(t.net.state_dict(), first[0].history[7]) for t in second)
        run_threads(3, lambda g: second[g].go_to(8))
        assert all(same(t.history[8], second[0].history[8]) for t in second)
        run_threads(3, lambda g: second[g].checkpoint.close())
        run_threads(3, lambda g: second[g].manager.shutdown())


def test_a_group_that_joins_copies_the_others_state_and_reads_none(tmp_path: Path) -> None:
    url = str(tmp_path)
    with lighthouse(min_replicas=1) as addr:
        (first,) = start(1, addr, url)
        first.go_to(7)
        second = Saving(1, addr, seed=1)
        assert not second.begin(url)
        assert second.manager.current_step() == 0
        left = threading.Event()

        def run(g: int) -> None:
            if g == 0:
                while not left.is_set():
                    first.step()
            else:
                for _ in range(3):
                    second.step()
                    second.checkpoint.step()
                second.checkpoint.close()
                second.manager.shutdown(finished=False)
                left.set()

        run_threads(2, run)
        assert all(same(first.history[step], state) for step, state in second.history.items())
        assert min(second.history) > 7
        first.checkpoint.close()
        first.manager.shutdown()
