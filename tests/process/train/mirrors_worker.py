"""One group as a process on a loopback address of its own, so that healing groups have mirrors.

While the file ``die`` exists the process kills itself with SIGKILL in the middle of a copy that others make of its
state.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

import torch
from torch import nn

from tests.torch.train.jobs import Told, Trainer, model
from torchft_x.transfer.http import server, transport

HELD = 4 << 20  # number of elements that are copied and not trained: 16 blocks
DIES_AFTER = 5 << 20  # bytes sent to others


def network(seed: int) -> nn.Module:
    net = model(seed)
    net.register_buffer("held", torch.full((HELD,), float(seed)))
    return net


def main(told: Told) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    transport.STRIPED_BYTES = 0
    host = f"127.0.0.{told.group + 1}"
    sent = [0]

    class Transport(transport.HTTPTransport[Any]):
        def recv_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            try:
                state = super().recv_checkpoint(*args, **kwargs)
            except BaseException:
                told.say("failed")
                raise
            told.say("copied", len(kwargs.get("mirrors", ())))
            return state

    send = server._Handler._send

    def send_or_die(self: server._Handler, parts: list[memoryview]) -> None:
        if told.file("die").exists():
            sent[0] += sum(map(len, parts))
        if sent[0] > DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, parts)

    server._Handler._send = send_or_die  # type: ignore[method-assign]
    trainer = Trainer(
        told.group, told.lighthouse, net=network(told.group), pg_timeout=60.0, timeout=60.0, quorum_timeout=None,
        straggler_timeout=None, rehearse=True, hostname=host,
        checkpoint_transport=Transport(host=host, shared_memory=False),
    )  # fmt: skip
    while told.goes_on(trainer.manager.current_step()):
        told.step(trainer, trainer.step())
        time.sleep(0.02)
    trainer.manager.shutdown()
