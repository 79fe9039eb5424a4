"""Checkpoints of whole jobs: a real lighthouse, groups as threads."""

from __future__ import annotations

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
