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
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Result of a check, printed as one line."""

    check: str
    """Subject of the check, in one or two words."""
    level: Level
    """``problem``: a job can't work. ``warning``: a job may fail, or work badly."""
    text: str
    """Sentence with the state and the advice."""


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


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, "problem", text)


def examine(case: Case, checks: Iterable[Check]) -> list[Finding]:
    """Run all checks at once, and return the findings in the order of the checks, by the longest deadline at the latest."""
    running = [_Running(check, case) for check in checks]
    return [finding for r in running for finding in r.findings()]


class _Running:
    """Running check on its own thread. The constructor starts it."""

    def __init__(self, check: Check, case: Case) -> None:
        self._check = check
        self._case = case
        self._found: list[Finding] = []
        self._done = threading.Event()
        self._deadline = time.monotonic() + check.seconds
        threading.Thread(target=self._look, name=f"doctor-{check.name}", daemon=True).start()

    def findings(self) -> list[Finding]:
        if self._done.wait(max(0.0, self._deadline - time.monotonic())):
            return self._found
        late = self._check.late or f"No end within {self._check.seconds:g} s: what was asked does not answer."
        return [*self._found, warning(self._check.name, late)]

    def _look(self) -> None:
        try:
            for finding in self._check.run(self._case):
                self._found.append(finding)
        except Exception as e:
            text = f"This check failed ({type(e).__name__}: {e}); that is a defect of torchft_x, please report it."
            self._found.append(warning(self._check.name, text))
        self._done.set()


def lines(findings: list[Finding]) -> list[str]:
    """Return the findings as lines of text, with a summary as the last one."""
    width = max((len(f.check) for f in findings), default=0)
    shown = [f"{f.level:<8} {f.check:<{width}}  {f.text}" for f in findings]
    count = {level: sum(f.level == level for f in findings) for level in ("problem", "warning")}
    words = [f"{n} {level}{'' if n == 1 else 's'}" for level, n in count.items() if n]
    return [*shown, f"{' and '.join(words)}." if words else "All is well."]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """Return the findings as JSON for programs. Later versions only add fields."""
    return {
        "problems": sum(f.level == "problem" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
        "findings": [{"check": f.check, "level": f.level, "text": f.text} for f in findings],
    }
