"""What is more than another name: against real lighthouses, threads and processes."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.util import scaled
from torchft_x import env


def test_a_callback_that_blocks_all_deadlines_ends_the_process() -> None:
    code = "import threading, time; from torchft_x.compat.futures import context_timeout\n"
    code += "with context_timeout(threading.Event().wait, 0.01): time.sleep(600)"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env={**env.everything(), env.WATCHDOG_TIMEOUT: "0.5"}, capture_output=True,
        text=True, timeout=scaled(60),
    )  # fmt: skip
    assert done.returncode == 1
    assert "has not returned for 0.5 s" in done.stderr
    assert time.monotonic() - began < scaled(60)
