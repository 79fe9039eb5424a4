"""The rules of this layer, enforced: no process, no connection to another machine, no sleep above 50 ms, no test above 1 s.

A test that needs more belongs into tests/process (docs/dev/testing.md). Time in which a test waited for a processor doesn't
count, so that a busy machine fails nobody.
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

LONGEST_SLEEP = 0.05  # seconds
LONGEST_TEST = 1.0  # seconds
MARGIN = 8.0  # a test that keeps the rule may take so many times as long where a core is shared and nothing is cached
ROOT = Path(__file__).parents[2]
PROCESSES = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")

_broken: list[str] | None = None  # what the test that runs has done against the rules; None between tests
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
    """Seconds for which this thread was ready to run and had no processor."""
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
