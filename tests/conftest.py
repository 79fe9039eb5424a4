"""Shared hooks of all tests.

Times are stretched on slow machines. With TORCHFT_X_NO_SKIP=1 (CI) a skipped test counts as a failure, unless it needs
GPUs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import machine
from tests.golden import Golden
from tests.util import scaled
from torchft_x import env

# Each connect to a torch TCPStore looks up the other side's name by its address. This takes 5 s if the name server
# drops the question, longer than many deadlines of the tests. Children inherit the setting.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# The warm parent imports torch ahead of a restart. This takes seconds of a processor in each group of each job, half of
# the cost of a small job. Tests that need restarts as users have them set the variables of `tests.journeys.jobs.WARM`.
os.environ.setdefault(env.WARM, "0")

# A shell's background jobs ignore SIGINT, and all children of the tests would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PID = os.getpid()


def _end_like_ctrl_c(number: int, _: object) -> None:
    """Run the fixtures' ends, so that no job of a test outlives the tests."""
    if os.getpid() != _PID:  # a forked child of a test
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    raise KeyboardInterrupt


for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_DFL:
        signal.signal(_number, _end_like_ctrl_c)

# Each run uses the same examples, as random search is the simulator's task. A slow example only shows a busy machine.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Set the scale of all times.

    This is the only hook that runs before the conftest.py files below this one are imported.
    """
    machine.set_scale(pluginmanager.get_plugin("pytestconfig"))
    parser.addoption("--rewrite", action="store_true", help="write the golden files; read the diff then")


def pytest_report_header() -> str:
    return f"time scale: {env.time_scale():g} ({env.TIME_SCALE})"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--rewrite")))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    global _reporter
    _reporter = config.pluginmanager.get_plugin("terminalreporter")


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = max((mark.args[0] for mark in item.iter_markers("gpu")), default=0)
    if needed:
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found < needed:
            pytest.skip(
                f"needs {needed} NVIDIA GPU(s), {found} found; run it on such a machine with a CUDA build of torch"
            )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stretch the time limit of each test, which is a deadline like any other."""
    if not config.pluginmanager.hasplugin("timeout"):
        return
    default = float(config.getini("timeout"))
    for item in items:
        mark = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(scaled(float(mark.args[0]) if mark else default)), append=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    may_skip = hasattr(report, "wasxfail") or item.get_closest_marker("gpu") is not None
    if report.skipped and not may_skip and os.environ.get("TORCHFT_X_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped where nothing may be skipped: {call.excinfo and call.excinfo.value}"
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens, and not only at the end."""
    if report.failed and _reporter is not None:
        _reporter.ensure_newline()
        _reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
        _reporter.write_line(report.longreprtext[-6000:])
