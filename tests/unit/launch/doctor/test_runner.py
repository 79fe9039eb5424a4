"""The doctor as a whole: deadlines, the command, its two forms of output."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchft_x.launch.doctor.runner import Case, Check, Finding, as_json, examine, lines, ok, problem, warning


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(environ={}, folder=tmp_path, home=tmp_path)


def test_a_check_that_hangs_is_a_finding_and_keeps_what_it_had_found(case: Case) -> None:
    never = threading.Event()

    def hangs(_: Case) -> Iterator[Finding]:
        yield ok("A first part.")
        never.wait()

    checks = [Check("disk", hangs, seconds=0.05), Check("net", hangs, seconds=0.05, late="The name server is away.")]
    found = examine(case, checks)
    never.set()
    assert [(name, f.level) for name, f in found] == [
        ("disk", "ok"),
        ("disk", "warning"),
        ("net", "ok"),
        ("net", "warning"),
    ]
    assert "0.05 s" in found[1][1].text
    assert found[3][1].text == "The name server is away."


def test_a_check_that_fails_is_a_finding(case: Case) -> None:
    def fails(_: Case) -> Iterator[Finding]:
        raise ZeroDivisionError("oh")

    ((_, found),) = examine(case, [Check("disk", fails)])
    assert found.level == "warning"
    assert "ZeroDivisionError: oh" in found.text


def test_both_forms_say_the_same() -> None:
    findings = [("a", ok("Fine.")), ("long name", warning("Hm.")), ("c", problem("No.")), ("c", problem("No again."))]
    assert lines(findings) == [
        "ok       a          Fine.",
        "warning  long name  Hm.",
        "problem  c          No.",
        "problem  c          No again.",
        "2 problems and 1 warning.",
    ]
    assert as_json(findings)["problems"] == 2
    assert as_json(findings)["findings"][2] == {"check": "c", "level": "problem", "text": "No."}  # type: ignore[index]
    assert lines([("a", ok("Fine."))])[-1] == "All is well."
