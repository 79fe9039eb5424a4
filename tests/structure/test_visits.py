from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.structure import run, table
from tests.structure.visits import Recorder, Window

ROOT = Path(__file__).parents[2]


def test_only_calls_into_another_file_of_the_package_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.py").write_text(
        "def decide(x):\n    return help(x)\n\ndef help(x):\n    return x\n\n"
        "def count():\n    yield 1\n    yield 2\n\nasync def wait():\n    return 3\n"
    )
    (tmp_path / "shell.py").write_text(
        "import functools\nimport measured.rules as rules\n\n"
        "def run():\n    rules.decide(1)\n    functools.reduce(lambda a, b: rules.decide(b), [1, 2, 3])\n"
        "    assert list(rules.count()) == [1, 2]\n    assert next(rules.wait().__await__(), 3) == 3\n"
    )
    package = ModuleType("measured")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "measured", package)
    shell = __import__("measured.shell", fromlist=["run"])
    recorder = Recorder(tmp_path)
    recorder.label("test")
    window = recorder.window = Window()
    before = sys.getprofile()
    sys.setprofile(recorder._on_event)
    try:
        shell.run()
    finally:
        sys.setprofile(before)
    rows = {row["file"]: row for row in window.visits("test")}
    assert list(rows) == ["shell.py", "rules.py"]
    assert rows["shell.py"]["entries"] == 1
    assert rows["rules.py"]["from"] == {"shell.py": 5}  # decide three times, count and wait once
    assert window.sums({"test"}) == {"files": 2, "crossings": 5, "entries": 1, "calls": 1 + 2 + 5 + 3}
    assert window.sums() == window.sums({"test"})
    assert window.sums({"another"})["calls"] == 0


@pytest.mark.slow
def test_a_step_and_a_join_are_measured_in_a_real_job() -> None:
    figures = table.counted(ROOT) | table.measured(ROOT)
    assert len(table.lines([("here", figures)])) == 2 + len(table.ROWS) + len(table.MEASURED)
    for kind in ("step", "join"):
        own, everybody = figures[kind]["training_thread"], figures[kind]["all_threads"]
        assert 0 < own["files"] <= everybody["files"]
        assert 0 < own["crossings"] <= everybody["crossings"]
    rows = run.visits(figures)
    assert "train/optim.py" in rows[0]
    assert len(rows) == figures["step"]["training_thread"]["files"]
    files = {row["file"] for rows in figures["join"]["visits"].values() for row in rows}
    assert "core/lighthouse/machine.py" in files
