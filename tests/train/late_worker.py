"""One group as a process of its own whose training thread can be told to stand still; everything else as by default.

    python -m tests.train.late_worker GROUP LIGHTHOUSE OUT_FILE STOP_FILE PLACE

While ``OUT_FILE.hold`` exists the training thread waits at PLACE: "before" a step (a data loader), in the "forward", in the
"backward" (between two buckets), or "after" the commit (an evaluation). The other threads of the process go on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from tests.train.jobs import Trainer, model
from tests.train.worker import digest


def main(group: int, lighthouse: str, path: Path, stop: Path, place: str) -> None:
    hold = path.with_name(path.name + ".hold")

    def stand(here: str) -> None:
        while here == place and hold.exists():
            time.sleep(0.02)

    net = model(group)
    next(iter(net.parameters())).register_hook(lambda grad: stand("backward"))  # of the first layer: the last gradient
    trainer = Trainer(group, lighthouse, net=net, timeout=None, quorum_timeout=None, straggler_timeout=None)
    torch.set_num_threads(1)
    with open(path, "a", buffering=1) as out:
        while not stop.exists() or trainer.manager.current_step() < int(stop.read_text()):
            stand("before")
            committed = trainer.step(lambda: stand("forward"))
            what = "commit" if committed else "drop"
            step = trainer.manager.current_step()
            out.write(f"{what} {step} {digest(trainer) if committed else '-'} {time.monotonic()}\n")
            stand("after")
            time.sleep(0.05)
    trainer.manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
