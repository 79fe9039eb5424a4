"""One group as a process whose heals can be stopped by a file.

While the file ``fetch`` exists, this group's copies from others wait. Waits for other groups may take ten minutes, so
that a group which waits for a stopped copy fails the test. All else has the defaults.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import nn

from tests.torch.train.jobs import Told, Trainer, rng
from torchft_x.transfer.http.transport import HTTPTransport


def network(seed: int) -> nn.Module:
    """Return a model whose forward changes more than gradients: running statistics, and torch's generator."""
    with rng:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def main(told: Told) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    class Transport(HTTPTransport[Any]):
        def recv_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            if told.file("fetch").exists():
                told.say("fetch")
            while told.file("fetch").exists():
                time.sleep(0.02)
            return super().recv_checkpoint(*args, **kwargs)

    trainer = Trainer(
        told.group, told.lighthouse, net=network(told.group), pg_timeout=600.0, timeout=600.0, quorum_timeout=None,
        straggler_timeout=None, rehearse=True, checkpoint_transport=Transport(host="127.0.0.1", shared_memory=False),
    )  # fmt: skip
    while told.goes_on(trainer.manager.current_step()):
        told.step(trainer, trainer.step(), trainer.net.parameters())  # running statistics differ between groups
        time.sleep(0.05)
    trainer.manager.shutdown()
