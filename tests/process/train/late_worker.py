"""One group as a process whose training thread can be stopped by a file; all else has the defaults.

While the file ``hold`` exists the training thread waits in the backward, between two buckets. The other threads of the
process continue.
"""

from __future__ import annotations

import time

import torch

from tests.torch.train.jobs import Told, Trainer, model


def main(told: Told) -> None:
    def stand(_: torch.Tensor) -> None:
        while told.file("hold").exists():
            time.sleep(0.02)

    net = model(told.group)
    next(iter(net.parameters())).register_hook(stand)  # the first layer's gradient is the last one
    trainer = Trainer(told.group, told.lighthouse, net=net, timeout=None, quorum_timeout=None, straggler_timeout=None)
    torch.set_num_threads(1)
    while told.goes_on(trainer.manager.current_step()):
        told.step(trainer, trainer.step())
        time.sleep(0.05)
    trainer.manager.shutdown()
