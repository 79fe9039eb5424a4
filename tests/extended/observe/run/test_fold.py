"""observe/run: a run put together from its event logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.observe.written import Job
from tests.util import scaled


def test_a_million_events_in_ten_seconds_and_half_a_gigabyte(tmp_path: Path) -> None:
    names = tuple(str(k) for k in range(8))
    job = Job(tmp_path, names)
    job.a_kill()
    job.steps(121, 125_000, 14.3, 102, names)
    code = (
        "import re, sys, time; from torchft_x.observe.run import read_run; from torchft_x.observe.drawing import page\n"
        "began = time.process_time(); run = read_run(sys.argv[1]); size = len(page(run, 0.0)); took = time.process_time() - began\n"
        "peak = re.search('VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())\n"  # rusage has what was there before exec, too
        "print(run.events, took, int(peak[1]) / 1024, size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=scaled(60), check=True
    )
    events, took, megabytes, size = map(float, done.stdout.split())
    assert events > 999_000
    assert took < scaled(10), f"{took:.1f} s of a processor"
    assert megabytes < 500
    assert size < 2e6
