"""Signals that the program which starts us ignores or blocks: both survive exec."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from torchft_x import __main__
from torchft_x.launch.schedulers import excepthook


@pytest.fixture
def odd_starter() -> Iterator[None]:
    """Ignore SIGCHLD and block SIGTERM, as some daemons and Perl programs do for what they start."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("odd_starter")
def test_a_command_learns_how_its_children_end_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SIGCHLD ignored the kernel kept no exit code: supervisors waited for ever for workers that had ended."""
    monkeypatch.setattr(sys, "argv", ["torchft_x", "--version"])
    assert __main__.main() == 0
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.usefixtures("odd_starter")
def test_torchx_learns_how_the_roles_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's subprocess reports 0 for a child whose exit code the kernel did not keep."""
    monkeypatch.setitem(sys.modules, "torchx.cli.main", sys)
    monkeypatch.setattr(sys, "argv", ["torchx", "run", "-s", "local_cwd"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    excepthook.prepare()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
