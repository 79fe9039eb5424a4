"""Command ``torchft_x demo``: two groups train on this machine, and the worker of one is killed in mid-run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError
from torchft_x.launch.run_commands import report
from torchft_x.observe.run_dirs import RUNS

_SHOWN = re.compile(r"(step +(\d+) \|.* groups 2|step +\d+ \||step \d+ dropped|group \S+ (?:died|rejoined|joined|left)|"
                    r"training goes on|done:|torchft_x:|demo_train.py:).*")  # fmt: skip


def main(argv: list[str]) -> int:
    """Run ``torchft_x demo`` and return the job's exit code."""
    parser = Parser(prog="torchft_x demo", description="Train with two groups, kill a worker of one, and report.")
    parser.add_argument("--steps", type=int, default=400, help="steps to train; the kill comes after a quarter of them")
    steps = parser.parse_args(argv).steps
    if steps < 40:
        raise ConfigError(f"--steps is {steps}; take at least 40, so that the killed group can come back in time.")
    run_dir = Path(RUNS, time.strftime(f"demo-%Y%m%d-%H%M%S-{os.getpid()}"))
    script = Path(__file__).with_name("demo_train.py")
    words = ["run", "-s", "local_cwd", "ft.ddp", "--replicas", "2", "--run_dir", str(run_dir), "--script", str(script)]
    words += ["--", "--steps", str(steps)]
    print(f"$ torchx {shlex.join(words)}\n", flush=True)
    run_dir.parent.mkdir(exist_ok=True)
    log = run_dir.with_suffix(".log")
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            [sys.executable, "-m", "torchx.cli.main", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as job,
    ):  # fmt: skip
        try:
            _show_and_kill(job, run_dir, output, steps // 4)
        finally:
            job.terminate()  # does nothing to a job that has ended
    if job.returncode:
        print(f"The job ended with exit code {job.returncode}; its whole output is in {log}.", file=sys.stderr)
    else:
        print()
        report([str(run_dir)])
        print(f"The script is {script}; its log is {log}.")
    return job.returncode


def _show_and_kill(job: subprocess.Popen[str], run_dir: Path, output: TextIO, kill_at: int) -> None:
    """Print the job's lines about its steps, and kill group 1 once both groups have committed step `kill_at`."""
    assert job.stdout is not None
    killed = False
    for line in job.stdout:
        output.write(line)
        if (shown := _SHOWN.search(line)) is None:
            continue
        print(shown[0], flush=True)
        if not killed and int(shown[2] or 0) >= kill_at:
            events = max(run_dir.glob("events/trainer-1-*.jsonl"), key=lambda path: path.stat().st_mtime)
            pid = int(events.stem.rpartition("-")[2])
            print(f"\n>>> kill -9 {pid}: the worker of group 1", flush=True)
            os.kill(pid, signal.SIGKILL)
            killed = True
