"""``torchft_x doctor``: looks at everything a job needs here and says what to do about it. Changes and ends nothing.

Each check runs on a thread of its own with a deadline, so that a dead file server or name server is itself a finding.
A check that fails in a way nobody thought of is a finding, too. The checks are in doctor_*.py.
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
    """One line."""

    check: str
    """What was looked at, one word or two."""
    level: Level
    """``problem``: a job can't work; ``warning``: it may work, or work badly."""
    text: str
    """A sentence: what is, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is to be looked at."""

    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    """The current directory."""
    home: Path
    lighthouse: str | None = None
    """One or several addresses; None: none is expected to run yet."""
    run_dir: Path | None = None
    torch: bool = False
    """Also import torch, in a process of its own."""


@dataclass(frozen=True)
class Check:
    """A check never raises on purpose, and may be slow."""

    name: str
    look: Callable[[Case], Iterable[Finding]]
    seconds: float = 10.0
    """After which it is left alone."""
    late: str = ""
    """What is said then, if that means something."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, "problem", text)


def examine(case: Case, checks: Iterable[Check]) -> list[Finding]:
    """All findings, in the order of the checks. Takes about as long as the longest deadline at most."""
    running = [_Running(check, case) for check in checks]
    return [finding for r in running for finding in r.findings()]


class _Running:
    """One check on its thread, begun when made."""

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
            for finding in self._check.look(self._case):
                self._found.append(finding)
        except Exception as e:
            text = f"This check failed ({type(e).__name__}: {e}); that is a defect of torchft_x, please report it."
            self._found.append(warning(self._check.name, text))
        self._done.set()


def lines(findings: list[Finding]) -> list[str]:
    """For people: one line each, and a last one that counts."""
    width = max((len(f.check) for f in findings), default=0)
    shown = [f"{f.level:<8} {f.check:<{width}}  {f.text}" for f in findings]
    count = {level: sum(f.level == level for f in findings) for level in ("problem", "warning")}
    words = [f"{n} {level}{'' if n == 1 else 's'}" for level, n in count.items() if n]
    return [*shown, f"{' and '.join(words)}." if words else "All is well."]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """For tools. Fields are only ever added."""
    return {
        "problems": sum(f.level == "problem" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
        "findings": [{"check": f.check, "level": f.level, "text": f.text} for f in findings],
    }
