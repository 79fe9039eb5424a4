#!/usr/bin/env python3
"""Loss of torchtitan's debug model in its three fault-tolerance modes, undisturbed and through kills: docs/trainers.md.

    TORCHFT_X_TRAINERS_PYTHON=.venv-trainers/bin/python python -m benchmarks.evidence.titan_curves --steps 120 --kills 3

Two groups of one process each train on the CPU. Group 1 is killed (SIGKILL), each time after the same number of its
steps. The curve is the loss of group 0 on its own batches. The program writes docs/bench/titan.json and
docs/pictures/titan-loss.svg.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.svg import Sheet
from tests.extended.compat.test_titan import printed, step, trainer
from tests.journeys.jobs import Job, running

ROOT = Path(__file__).resolve().parents[2]

METHODS = {"None": "gradients averaged in each step", "local_sgd": "LocalSGD", "diloco": "DiLoCo"}
CALM, KILLED, GRID = "#1b6ec2", "#c0392b", "#e4e4e4"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for method in METHODS:
        found[method] = {
            "calm": train(method, args.steps, 0)[0],
            **dict(zip(("killed", "kills"), train(method, args.steps, args.kills), strict=True)),
        }
        print(method, {name: values for name, values in found[method].items() if name == "kills"}, flush=True)
    out = ROOT / "docs/bench/titan.json"
    out.write_text(json.dumps({"steps": args.steps, "loss": found}) + "\n", encoding="utf-8")
    draw(found, args.steps).write(ROOT / "docs/pictures/titan-loss.svg")
    return 0


def train(method: str, steps: int, kills: int) -> tuple[list[list[float]], list[int]]:
    """Train, and return [step, loss] of group 0, and its steps at which group 1 was killed."""
    with tempfile.TemporaryDirectory(prefix="titan-curves-") as name:
        folder = Path(name)
        command, environ = trainer(
            folder, "--training.steps", str(steps), "--fault_tolerance.semi_sync_method", method,
            "--fault_tolerance.sync_steps", "4", "--fault_tolerance.num_fragments", "1", "--metrics.log_freq", "1",
            "--lr_scheduler.warmup_steps", "0", "--lr_scheduler.min_lr_factor", "1.0",
        )  # fmt: skip
        at = []
        with running(command, folder / "log", folder / "run", cwd=folder, **environ) as job:
            for number in range(kills):
                due = (number + 1) * steps // (kills + 1)
                job.wait_for(lambda due=due: has_come(job, due), 300, f"group 1 is at step {due}")
                os.kill(job.worker("torchtitan_ft_1"), signal.SIGKILL)
                at.append(step(job, 0))
            code = job.wait(600)
            if code != 0:
                raise SystemExit(f"{method}: the job ended with {code}:\n{job.output()[-3000:]}")
            text = re.sub(r"\x1b\[[0-9;]*m", "", printed(job, 0))
    return [[int(n), float(loss)] for n, loss in re.findall(r"step: +(\d+) +loss: +([\d.]+)", text)], at


def has_come(job: Job, due: int) -> bool:
    """Return whether both groups train and have reached step `due`."""
    return step(job, 1) >= due and step(job, 0) >= due


def draw(found: dict[str, dict[str, object]], steps: int) -> Sheet:
    wide, high, left, top = 330, 220, 46, 40
    sheet = Sheet(len(METHODS) * (wide + left) + 20, high + top + 60)
    losses = [loss for one in found.values() for curve in (one["calm"], one["killed"]) for _, loss in curve]  # type: ignore[attr-defined]
    most = max(losses)
    for k, (method, words) in enumerate(METHODS.items()):
        x0 = left + k * (wide + left)

        def place(point: list[float], x0: int = x0) -> tuple[float, float]:
            return x0 + point[0] / steps * wide, top + high * (1 - point[1] / most)

        sheet.text(x0, 24, words, size=14)
        for tick in range(int(most) + 1):
            (_, y) = place([0, tick])
            sheet.line(x0, y, x0 + wide, y, GRID)
            sheet.text(x0 - 6, y + 4, str(tick), size=11, anchor="end")
        for due in found[method]["kills"]:  # type: ignore[attr-defined]
            x, _ = place([due, 0])
            sheet.line(x, top, x, top + high, KILLED, dash="3 3")
        for curve, color in ((found[method]["calm"], CALM), (found[method]["killed"], KILLED)):
            points = [place(point) for point in curve]  # type: ignore[attr-defined]
            for a, b in itertools.pairwise(points):
                sheet.line(*a, *b, color, width=1.5)
        sheet.text(x0 + wide, top + high + 18, f"step {steps}", size=11, anchor="end")
    sheet.text(left, top + high + 44, "undisturbed", color=CALM)
    sheet.text(left + 110, top + high + 44, "group 1 is killed where the line is dashed", color=KILLED)
    return sheet


if __name__ == "__main__":
    sys.exit(main())
