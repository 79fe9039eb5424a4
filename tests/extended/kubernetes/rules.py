"""What a kubelet decides about a container: whether it is run again, and whether it is ready."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class Probe:
    """When to probe, and what the answers so far amount to (`passes`)."""

    def __init__(self, spec: Json, started: float) -> None:
        self.spec = spec
        self.passes = False  # until the thresholds say otherwise
        self.due = started + spec.get("initialDelaySeconds", 0)
        self._run = 0  # answers alike, the newest ones; successes above zero

    def answered(self, good: bool, now: float) -> None:
        self.due = now + self.spec.get("periodSeconds", 10)
        self._run = max(self._run, 0) + 1 if good else min(self._run, 0) - 1
        if self._run >= self.spec.get("successThreshold", 1):
            self.passes = True
        elif -self._run >= self.spec.get("failureThreshold", 3):
            self.passes = False


def runs_again(policy: str, code: int) -> bool:
    """Whether a pod's restart policy starts a container again that ended with `code`."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def phase(policy: str, codes: list[int | None], begun: bool) -> str:
    """A pod's phase, from its containers' exit codes (None: it runs, or waits) and whether all were ever started."""
    if not begun:
        return "Pending"
    if any(code is None or runs_again(policy, code) for code in codes):
        return "Running"
    return "Failed" if any(codes) else "Succeeded"
