"""The matrix's tables: printed at the end and written to runs/matrix.md."""

from __future__ import annotations

import pytest

from tests.extended.matrix.table import Results
from tests.unit.launch.lines import ROOT

pytest.register_assert_rewrite("tests.extended.matrix.cells")
_KEY = pytest.StashKey[Results]()
_FILE = ROOT / "runs" / "matrix.md"


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> Results:
    return pytestconfig.stash.setdefault(_KEY, Results())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash.get(_KEY, None)
    lines = results.lines() if results is not None else []
    if not lines:
        return
    _FILE.parent.mkdir(exist_ok=True)
    _FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    terminalreporter.section(f"matrix, also in {_FILE.relative_to(ROOT)}")
    for line in lines:
        terminalreporter.write_line(line)
