"""One group as a process of its own whose first steps, or whose heals, can be told to stand still. All as by default, but that
waits for others may take ten minutes: whoever waits for what stands still has waited in vain.

    python -m tests.train.newcomer_worker GROUP LIGHTHOUSE OUT_FILE STOP_FILE

While ``OUT_FILE.first`` exists the first forward of a life waits, as one that compiles does; while ``OUT_FILE.fetch`` does, so
does what this group copies from others, and while ``OUT_FILE.serve`` does, what others copy from it.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.train.jobs import Trainer, rng
from torchft_x.transfer.http import server
from torchft_x.transfer.http.transport import HTTPTransport


def network(seed: int) -> nn.Module:
    """With what a forward changes besides gradients: running statistics, and torch's generator."""
    with rng:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def digest(net: nn.Module) -> str:
    """Of the parameters: running statistics differ between groups."""
    h = hashlib.sha256()
    for p in net.parameters():
        h.update(bytes(p.detach().contiguous().untyped_storage()))
    return h.hexdigest()


class Standing:
    """Waits while a file is there."""

    def __init__(self, path: Path, what: str, say: Callable[[str], None]) -> None:
        self._file = path.with_name(f"{path.name}.{what}")
        self._what = what
        self._say = say  # that it begins to wait

    def __call__(self) -> None:
        if self._file.exists():
            self._say(self._what)
        while self._file.exists():
            time.sleep(0.02)


def main(group: int, lighthouse: str, path: Path, stop: Path) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with open(path, "a", buffering=1) as out:

        def say(what: str, step: int = 0, value: str = "-") -> None:
            out.write(f"{what} {step} {value} {time.monotonic()}\n")

        first, fetch, serve = (Standing(path, what, say) for what in ("first", "fetch", "serve"))
        send = server._Handler._send_blocks

        class Transport(HTTPTransport[Any]):
            def recv_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
                fetch()
                return super().recv_checkpoint(*args, **kwargs)

        def send_blocks(*args: Any, **kwargs: Any) -> None:
            serve()
            send(*args, **kwargs)

        server._Handler._send_blocks = send_blocks  # type: ignore[method-assign]
        trainer = Trainer(
            group, lighthouse, net=network(group), pg_timeout=600.0, timeout=600.0, quorum_timeout=None, straggler_timeout=None,
            rehearse=True, checkpoint_transport=Transport(host="127.0.0.1", shared_memory=False),
        )  # fmt: skip
        begun: list[bool] = []
        while not stop.exists() or trainer.manager.current_step() < int(stop.read_text()):
            committed = trainer.step(lambda: None if begun else first())
            begun.append(True)
            step = trainer.manager.current_step()
            say("commit" if committed else "drop", step, digest(trainer.net) if committed else "-")
            time.sleep(0.05)
    trainer.manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
