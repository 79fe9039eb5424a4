"""A kubelet's decisions about a container, as state machines without a clock: restarts and readiness."""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]

_FIRST, _LONGEST = 10.0, 300.0  # first and longest back-off of a crashing container, seconds


class CrashBackOff:
    """Back-off before a container that ended is started again; all times in seconds of one clock.

    The first restart is at once, the next ones wait 10, 20, 40 ... 300 s from the end of the container. After ten
    minutes without a restart the back-off is reset.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._updated = float("-inf")

    def start_at(self, finished: float) -> float:
        """Return the time at which a container that ended at `finished` may start."""
        if finished - self._updated > 2 * _LONGEST:
            self._seconds = 0.0
        return finished + self._seconds

    def started(self, now: float) -> None:
        """Record a restart."""
        self._seconds = min(2 * self._seconds or _FIRST, _LONGEST)
        self._updated = now


class Probe:
    """A readiness probe: the time of the next probe, and the verdict over the answers so far (`passes`)."""

    def __init__(self, spec: Json, started: float) -> None:
        self.spec = spec
        self.passes = False  # until a threshold is reached
        self.due = started + spec.get("initialDelaySeconds", 0)
        self._run = 0  # length of the newest run of equal answers; negative for failures

    def answered(self, good: bool, now: float) -> None:
        self.due = now + self.spec.get("periodSeconds", 10)
        self._run = max(self._run, 0) + 1 if good else min(self._run, 0) - 1
        if self._run >= self.spec.get("successThreshold", 1):
            self.passes = True
        elif -self._run >= self.spec.get("failureThreshold", 3):
            self.passes = False


def runs_again(policy: str, code: int) -> bool:
    """Return whether a pod's restart policy restarts a container that ended with `code`."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def phase(policy: str, codes: list[int | None], begun: bool) -> str:
    """Return a pod's phase, from its containers' exit codes and whether all were ever started.

    An exit code of None stands for a container that runs or waits.
    """
    if not begun:
        return "Pending"
    if any(code is None or runs_again(policy, code) for code in codes):
        return "Running"
    return "Failed" if any(codes) else "Succeeded"


def quantity(text: str) -> int:
    """Return the bytes of a Kubernetes quantity such as ``512Mi``."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(text)).groups()  # type: ignore[union-attr]
    powers = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return int(float(number) * powers[unit])
