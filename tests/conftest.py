"""Shared hooks: with TORCHFT_X_NO_SKIP=1 (CI) a skipped test is a failure."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

# Each connect to a torch TCPStore looks up the other side's name by its address: 5 s where the name server drops a
# question, longer than many a deadline in the tests. Children inherit it.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TORCHFT_X_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped where nothing may be skipped: {call.excinfo and call.excinfo.value}"
        )
