"""One group as a process, for tests that kill it. It writes a digest of its parameters at every commit.

SIGTERM makes it leave at the next boundary.
"""

from __future__ import annotations

import signal
import time

from tests.torch.train.jobs import Told, Trainer


def main(told: Told) -> None:
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: leaving.append(number))
    trainer = Trainer(told.group, told.lighthouse, seed=told.group + int(time.time()), rehearse=True)
    while not leaving and told.goes_on(trainer.manager.current_step()):
        told.step(trainer, trainer.step())
        time.sleep(0.005)  # lengthen steps, so that kills hit their middle
    trainer.manager.shutdown()
