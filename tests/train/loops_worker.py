"""As tests.train.worker, with the two loops of a script that throws steps away after backward.

    python -m tests.train.loops_worker GROUP LIGHTHOUSE OUT_FILE STOP_FILE LOOP

LOOP "report": it says `report_error` and goes on to ``optimizer.step()``; "skip": it goes on to the next batch. Group 1 is
against step 5, group 0 against step 10, and step 15 has a batch of NaN in group 0, which makes everybody's average NaN.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

from tests.train.jobs import Trainer, loss_of

AGAINST = {5: 1, 10: 0}  # step in hand -> group that doesn't like it, once
BAD_BATCH = 15


def digest(trainer: Trainer) -> str:
    h = hashlib.sha256()
    for value in trainer.net.state_dict().values():
        h.update(bytes(value.contiguous().untyped_storage()))
    return h.hexdigest()


def dislikes(t: Trainer, step: int, done: set[int]) -> str:
    """What a script finds in the gradients; empty: nothing."""
    if AGAINST.get(step) == t.group and step not in done:
        done.add(step)
        return "an odd loss"
    if any(p.grad is not None and p.grad.isnan().any() for p in t.net.parameters()):
        return "NaN in the gradients"
    return ""


def main(group: int, address: str, path: str, stop: Path, loop: str) -> None:
    t = Trainer(group, address)
    done: set[int] = set()  # steps that were tried
    with open(path, "a", buffering=1) as out:
        while not stop.exists() or t.manager.current_step() < int(stop.read_text()):
            t.optimizer.zero_grad()
            step = t.manager.current_step()
            loss = loss_of(t.model, group, step)
            if step == BAD_BATCH and group == 0 and BAD_BATCH not in done:
                done.add(BAD_BATCH)
                loss = loss * float("nan")
            loss.backward()
            if why := dislikes(t, step, done):
                out.write(f"against {step} - {time.monotonic()}\n")
                if loop == "skip":
                    continue
                t.manager.report_error(RuntimeError(why))
            t.optimizer.step()
            if t.optimizer.committed:
                if not all(p.isfinite().all() for p in t.net.parameters()):
                    raise ArithmeticError(f"step {step} was committed with gradients that are no numbers")
                out.write(f"commit {t.manager.current_step()} {digest(t)} {time.monotonic()}\n")
    t.manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
