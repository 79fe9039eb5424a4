"""Enforce the rules of this layer: no process, no remote connection, no sleep above 50 ms, no test above 1 s.

A test that needs more belongs in tests/process (docs/dev/testing.md). Time in which a test waited for a processor
doesn't count, so that no test fails because the machine is busy.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LONGEST_SLEEP = 0.05  # seconds of one sleep
LONGEST_TEST = 1.0  # seconds of one test
MARGIN = 8.0  # factor by which a test may exceed its limit on a shared core with cold caches
ROOT = Path(__file__).parents[2]
PROCESSES = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")

_broken: list[str] | None = None  # violations of the running test; None between tests
_sleep = time.sleep


def _break(rule: str) -> None:
    if _broken is not None:
        frame = sys._getframe(2)
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(str(ROOT)):
            frame = frame.f_back
        _broken.append(f"{rule} ({frame.f_code.co_filename}:{frame.f_lineno})")


def _local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    try:
        return ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback
    except ValueError:
        return address[0] in ("localhost", "")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _broken is None:
        return
    if event in PROCESSES:
        _break(f"it starts a process: {event}")
    elif event == "socket.connect" and args[0].type == socket.SOCK_STREAM and not _local(args[1]):
        _break(f"it connects to {args[1][0]}")


def _checked_sleep(seconds: float) -> None:
    if seconds > LONGEST_SLEEP:
        _break(f"it sleeps for {seconds:g} s")
    _sleep(seconds)


def _waited() -> float:
    """Return the seconds for which this thread was ready to run and had no processor."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


sys.addaudithook(_audit)
time.sleep = _checked_sleep


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    global _broken
    _broken = broken = []
    began, waited = time.monotonic(), _waited()
    outcome = yield
    took = time.monotonic() - began - (_waited() - waited)
    _broken = None
    if took > MARGIN * LONGEST_TEST:
        broken.append(f"it took {took:.2f} s")
    if broken and outcome.excinfo is None:
        outcome.force_exception(
            pytest.fail.Exception(f"{item.nodeid} breaks the rules of tests/unit: {'; '.join(broken)}", pytrace=False)
        )
