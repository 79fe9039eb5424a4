"""Checks that go wrong, for the tests of the runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.gpu.kit import Figures, Kit, Skip, need


def fails(kit: Kit) -> Figures:
    kit.figures["until then"] = 3
    need(False, "two and two are five")
    return kit.figures


def skips(kit: Kit) -> Figures:
    raise Skip("it wants a moon")


def crashes(kit: Kit) -> Figures:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
    return kit.figures


def hangs(kit: Kit) -> Figures:
    """And so does a process it has started."""
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(600)  # {os.getppid()} hangs"])
    time.sleep(600)
    return kit.figures
