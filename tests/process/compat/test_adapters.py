"""What is more than another name: against real lighthouses, threads and processes."""

from __future__ import annotations

from tests.process.programs import python
from torchft_x import env


def test_a_callback_that_blocks_ends_the_process() -> None:
    code = "import threading, time; from torchft_x.compat.futures import context_timeout\n"
    code += "with context_timeout(threading.Event().wait, 0.01): time.sleep(600)"
    done = python("-c", code, code=1, **{env.WATCHDOG_TIMEOUT: "0.5"})
    assert "has not returned for 0.5 s" in done.stderr
