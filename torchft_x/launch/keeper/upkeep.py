"""Decides on a keeper's processes: restarts, other numbers of groups, the job's end. Pure: takes values and the time.

* A *supervisor* (of a group, a lighthouse, a sidecar) ends with a final exit code of 0, 1 or 2: done, gave up, usage error.
  Any other end means that it was killed, so it is restarted within its role's budget.
* A program that isn't ours is never restarted, as with TorchX's local_cwd.
* The job is over when its lighthouses are; they know whether it succeeded. A job without one of its own is over when all
  groups are (or all programs that aren't ours); sidecars don't count.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchft_x.errors import ConfigError
from torchft_x.launch.job import checks
from torchft_x.launch.keeper.plan import JobPlan, RolePlan
from torchft_x.launch.process import devices
from torchft_x.launch.process.process_tree import signal_name
from torchft_x.launch.process.restarts import (
    LIGHTHOUSE_RULES,
    OWN_FAULTS,
    AttemptEnd,
    GiveUp,
    RestartPolicy,
    RestartRules,
)

_WORDS = (0, 1, 2)  # final exit codes of a supervisor


@dataclass(frozen=True)
class Outcome:
    """Final state of the job, and the reason."""

    state: str
    reason: str


class Replica:
    """Replica of a role, over all starts of its process. Owns its state and its restart budget."""

    def __init__(self, role: RolePlan, number: int) -> None:
        self.role = role  # fixed
        self.number = number  # fixed
        rules = RestartRules(max_restarts=role.max_restarts, longest_pause=5.0, steps=False)
        self._restarts = RestartPolicy(LIGHTHOUSE_RULES if role.kind == "lighthouse" else rules)
        self.began = 0.0  # monotonic seconds of its process's last start
        self.due: float | None = None  # monotonic seconds of the next restart; None if none is due
        self.starts = 0  # number of restarts
        self.over = False  # whether it has ended for good
        self.leaving = False  # whether it was told to leave
        self.code: int | None = None  # exit code, or -signal, of the last process; None while it runs
        self.last_exit = ""  # clause: how that process ended

    @property
    def name(self) -> str:
        """Name of the replica for people."""
        if self.role.kind != "trainer":
            many = len(self.role.replicas) > 1
            return f"{self.role.name} {self.number}" if many else self.role.name
        node = f" (node {self.node})" if self.role.nodes > 1 else ""
        return f"group {self.group}{node}"

    @property
    def group(self) -> str:
        """Group id of a trainer; '' for other roles."""
        return str(self.number // self.role.nodes) if self.role.kind == "trainer" else ""

    @property
    def node(self) -> int:
        return self.number % self.role.nodes

    def started(self, now: float) -> None:
        self.began, self.due, self.code = now, None, None

    def ended(self, code: int, now: float) -> str:
        """Decide on a restart (`due`, else `over`) after the process ended at `now` (monotonic seconds).

        `code` is the exit code or -signal. Return a sentence for people; '' if it ended well or was told to leave.
        """
        self.code = code
        how = f"killed by {signal_name(-code)}" if code < 0 else f"ended with code {code}"
        was = f"{self._who} {'was' if code < 0 else 'has'} {how}"
        self.last_exit = "" if code == 0 else how
        if self.leaving or not self.role.kind or code in _WORDS:
            self.over = True
            return "" if code == 0 or self.leaving else was
        own = -code in OWN_FAULTS if code < 0 else code != 128 + signal.SIGTERM
        uptime = now - self.began
        end = AttemptEnd(False, code, how, own, uptime >= LIGHTHOUSE_RULES.quick, uptime)
        pause = self._restarts.ended(end, now)
        if isinstance(pause, GiveUp):
            self.over = True
            return f"{self._who} is given up: {pause.sentence}"
        self.starts += 1
        self.due = now + pause
        when = f" in {pause:g} s" if pause else ""
        return f"{was} after {uptime:.1f} s; it is started again{when}"

    @property
    def _who(self) -> str:
        """Name of its process for people."""
        kind = self.role.kind
        if kind == "lighthouse":
            return f"the {self.name}'s own process"
        return f"the supervisor of {'' if kind == 'trainer' else 'the '}{self.name}" if kind else self.name

    @property
    def state(self) -> str:
        """State of the replica, with TorchX's name."""
        if not self.over:
            return "PENDING" if self.due is not None or not self.began else "RUNNING"
        return "CANCELLED" if self.leaving else "SUCCEEDED" if self.code == 0 else "FAILED"


def outcome(replicas: list[Replica], last_words: dict[str, str]) -> Outcome | None:
    """Return how the job has ended, or None if it runs. `last_words` holds the last line of each failed replica, by name."""
    lighthouses = [r for r in replicas if r.role.kind == "lighthouse"]
    counted = lighthouses or [r for r in replicas if r.role.kind != "sidecar" and not r.leaving] or replicas
    if not all(r.over for r in counted):
        return None
    failed = next((r for r in counted if r.state != "SUCCEEDED"), None)
    if failed is None:
        return Outcome("SUCCEEDED", "")
    words = last_words.get(failed.name, "")
    return Outcome("FAILED", f"{failed.name} {failed.last_exit}" + (f": {words}" if words else ""))


def check_scale(plan: JobPlan, wanted: int, trainers: Iterable[Replica]) -> RolePlan:
    """Return the role whose number of replicas changes. Raise `ConfigError` if the job can't have so many groups."""
    role = plan.trainer
    command = None if role is None or role.template is None else role.template.args
    checks.check_groups(wanted, least=plan.min_replicas, command=command)
    assert role is not None
    done = next((r for r in trainers if r.over and not r.leaving and r.code == 0), None)
    if done is not None:
        raise ConfigError(f"the job is about to end: {done.name} has finished.")
    return role


def share_devices(
    role: RolePlan, count: int, mine: devices.Usable | None, others: list[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Return the variables that name the accelerators of each of `count` new replicas.

    `mine` are the job's, and `others` the environments of the existing replicas. Raise `ConfigError` if too few are free.
    """
    if not role.shares_devices:
        return [{} for _ in range(count)]
    assert mine is not None
    taken = {name for other in others for name in other.get(mine.variable, "").split(",")}
    parts = devices.share_out(mine, role=role.name, replicas=count, each=role.gpu, taken=taken)
    return [{mine.variable: part} for part in parts]
