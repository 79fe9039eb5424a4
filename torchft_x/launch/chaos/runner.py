"""Carries out a schedule of faults against one run, and writes each fault into the run's events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torchft_x.launch.chaos.schedule import LASTING, Planned, Target, Targets
from torchft_x.observe.console import harmless
from torchft_x.observe.events import EventLog, subscribe
from torchft_x.timing import POLL

_VICTIM_WAIT = 60.0  # seconds, at most, for a process that can be struck


class ChaosEnded(Exception):
    """Signals the end of the job, or that no process can be struck any more. The message is a sentence with the reason."""


class Chaos:
    """Run of a schedule of faults. It is a context manager, which resumes all stopped processes at its end."""

    def __init__(
        self,
        targets: Targets,
        run_dir: Path | None,
        say: Callable[[str], object] = print,
        keep: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """`keep` is called with each fault's event, for a run without a directory on this host."""
        self._targets = targets
        self._events = EventLog(run_dir, "chaos")
        self._end_keeping = subscribe(keep) if keep is not None else lambda: None
        self._say = say
        self._stopped: list[tuple[float, Target]] = []  # stopped processes, with the monotonic time of their resumption
        self.done = 0  # number of faults

    def __enter__(self) -> Chaos:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, target in self._stopped:
            self._targets.resume(target)
        self._events.close()
        self._end_keeping()

    def run(self, plan: Iterable[Planned]) -> None:
        """Carry out the plan to its end. Raise `ChaosEnded` if the job ends first, or no process can be struck in time."""
        began = time.monotonic()
        for planned in plan:
            due = began + planned.at
            self._wait_until(lambda due=due: time.monotonic() >= due, None)  # type: ignore[misc]
            late = time.monotonic()
            self._strike(planned)
            began += time.monotonic() - late  # a wait for a victim delays all later faults
        self._wait_until(lambda: not self._stopped, None)

    def _strike(self, planned: Planned) -> None:
        stops, seconds = planned.kind == "stop", planned.seconds if planned.kind in LASTING else None
        struck: list[tuple[Target, float, float]] = []

        def once() -> bool:
            target = planned.choose(self._targets.living())
            if target is None:
                return False
            if stops and seconds is not None:  # registered before the stop, so that it is resumed in any case
                self._stopped.append((time.monotonic() + seconds, target))
            began = time.time(), time.monotonic()  # before the strike, whose effects may come at once
            if self._targets.strike(target, planned.kind, seconds):
                struck.append((target, *began))
            return bool(struck)

        self._wait_until(once, _VICTIM_WAIT)
        ((target, t, mono),) = struck
        self.done += 1
        self._events.emit(
            "fault",
            t=t,
            mono=mono,
            number=self.done,
            kind=planned.kind,
            victim=target.pid or target.pod,
            group=target.group or None,
            rank=target.rank if target.role == "worker" else None,
            duration=seconds,
        )
        self._say(f"{self.done}: {planned.kind}{f' for {seconds:.1f} s' if seconds else ''}: {harmless(target)}")

    def _wait_until(self, condition: Callable[[], bool], seconds: float | None) -> None:
        """Wait for the condition and resume stopped processes. Raise `ChaosEnded` at the job's end, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        looked = 0.0
        while not condition():
            now = time.monotonic()
            for end, target in self._stopped:
                if now >= end:
                    self._targets.resume(target)
            self._stopped = [(end, target) for end, target in self._stopped if now < end]
            if now > looked + 1.0:  # `living` reads all processes of the host
                looked = now
                if not self._targets.living():
                    raise ChaosEnded(f"the job has ended after {self.done} faults.")
            if deadline is not None and now > deadline:
                raise ChaosEnded(f"nobody who can be struck was there for {seconds:.0f} s, after {self.done} faults.")
            time.sleep(POLL)


def describe(plan: Iterable[Planned], targets: list[Target]) -> Iterator[str]:
    """Yield a line for each planned fault, with its victim among the processes that live now."""
    for number, planned in enumerate(plan, start=1):
        target = planned.choose(targets)
        took = f" for {planned.seconds:.1f} s" if planned.kind in LASTING and planned.seconds is not None else ""
        whom = harmless(target) if target is not None else "nobody: none lives now"
        yield f"{number}: after {planned.at:.1f} s {planned.kind}{took}: {whom}"
