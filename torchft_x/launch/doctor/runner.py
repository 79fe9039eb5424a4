"""Runs the checks of ``torchft_x doctor``, and formats their findings.

Each check runs on its own thread with a deadline, so that a dead file server or name server is itself a finding. An
unexpected exception in a check is a finding too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of a check, printed as one line."""

    level: Literal["ok", "warning", "problem"]
    """``problem``: a job can't work. ``warning``: a job may fail, or work badly."""
    text: str
    """Sentence with the state and the advice."""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str) -> Finding:
    return Finding("warning", text)


def problem(text: str) -> Finding:
    return Finding("problem", text)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Input of the checks."""

    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    """Current directory."""
    home: Path
    lighthouse: str | None = None
    """Addresses of one or several lighthouses; None if none was named on the command line."""
    run_dir: Path | None = None
    torch: bool = False
    """Whether torch is imported too, in a process of its own."""


@dataclass(frozen=True)
class Check:
    """Check with its deadline. Its function never raises on purpose, and may be slow."""

    name: str
    run: Callable[[Case], Iterable[Finding]]
    seconds: float = 10.0
    """Deadline in seconds, after which the check is abandoned."""
    late: str = ""
    """Text of the finding for a missed deadline; '' for a general one."""


def examine(case: Case, checks: Iterable[Check]) -> list[tuple[str, Finding]]:
    """Run all checks at once, and return the name and findings of each, by the longest deadline at the latest."""
    began, running = time.monotonic(), []
    for check in checks:
        found: list[Finding] = []
        thread = threading.Thread(target=_run, args=(check, case, found), name=f"doctor-{check.name}", daemon=True)
        thread.start()
        running.append((check, thread, found))
    shown: list[tuple[str, Finding]] = []
    for check, thread, found in running:
        thread.join(max(0.0, began + check.seconds - time.monotonic()))
        late = check.late or f"No end within {check.seconds:g} s: what was asked does not answer."
        shown += [(check.name, one) for one in (*found, *([warning(late)] if thread.is_alive() else []))]
    return shown


def _run(check: Check, case: Case, found: list[Finding]) -> None:
    try:
        for finding in check.run(case):
            found.append(finding)  # one by one, so that those before a missed deadline are kept
    except Exception as e:
        text = f"This check failed ({type(e).__name__}: {e}); that is a defect of torchft_x, please report it."
        found.append(warning(text))


def lines(findings: list[tuple[str, Finding]]) -> list[str]:
    """Return the findings as lines of text, with a summary as the last one."""
    width = max((len(name) for name, _ in findings), default=0)
    shown = [f"{f.level:<8} {name:<{width}}  {f.text}" for name, f in findings]
    count = {level: sum(f.level == level for _, f in findings) for level in ("problem", "warning")}
    words = [f"{n} {level}{'' if n == 1 else 's'}" for level, n in count.items() if n]
    return [*shown, f"{' and '.join(words)}." if words else "All is well."]


def as_json(findings: list[tuple[str, Finding]]) -> dict[str, object]:
    """Return the findings as JSON for programs. Later versions only add fields."""
    return {
        "problems": sum(f.level == "problem" for _, f in findings),
        "warnings": sum(f.level == "warning" for _, f in findings),
        "findings": [{"check": name, "level": f.level, "text": f.text} for name, f in findings],
    }
