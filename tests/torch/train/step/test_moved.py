"""Scripts that move their parameters inside a step: nobody may copy them then, and nothing computed there is reduced again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, loss_of, same
from tests.util import scaled
from torchft_x.observe.events import read_events

AT, LAST = 3, 8  # the step in which one of two groups leaves, and the last one


class SharpnessAware(Trainer):
    """Computes each step's gradient a little way up the slope, and takes the step from where it started."""

    def step(self, hook: Callable[[], None] | None = None) -> bool:
        self.optimizer.zero_grad()
        step = self.manager.current_step()
        with self.model.no_sync():
            loss_of(self.model, self.group, step).backward()
        before = [p.detach().clone() for p in self.net.parameters()]
        with torch.no_grad():
            for p in self.net.parameters():
                p.add_(p.grad, alpha=0.05)
                p.grad = None
        if hook is not None:
            hook()
        loss_of(self.model, self.group, step).backward()
        with torch.no_grad():
            for p, old in zip(self.net.parameters(), before, strict=True):
                p.copy_(old)
        return self.finish_step()


@pytest.mark.parametrize("options", [{}, {"use_async_quorum": False}, {"vote_in_backward": False}], ids=str)
def test_a_newcomer_copies_the_committed_parameters(options: dict[str, Any], run_dir: Path) -> None:
    meet, gone = threading.Barrier(2), threading.Event()

    def run(life: int) -> SharpnessAware | None:
        if life == 2:
            assert gone.wait(scaled(30))
        trainer = SharpnessAware(min(life, 1), address, seed=0, min_replica_size=2, **options)

        def leave_in_the_middle() -> None:
            meet.wait(scaled(20))
            trainer.manager.shutdown(finished=False)
            gone.set()
            raise InterruptedError

        try:
            trainer.run_to(AT)
            if life < 2:
                trainer.step([lambda: meet.wait(scaled(20)), leave_in_the_middle][life])
            trainer.run_to(LAST)
        except InterruptedError:
            return None
        return trainer

    with lighthouse(2) as address:
        stayed, _, came = run_threads(3, run)
        both = stayed.history.keys() & came.history.keys()
        assert both == set(range(AT + 1, LAST + 1))
        assert all(same(stayed.history[step], came.history[step]) for step in both)
        leave(stayed, came)
    assert not [e for e in read_events(run_dir) if e["event"] == "redo"]
