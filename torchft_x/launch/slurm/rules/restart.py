"""Decides which parts of a job restart, when and without which nodes: queue, lighthouse's status in, actions out. Pure.

* A part that Slurm has requeued need not wait for its BeginTime.
* A part that Slurm gave up (its batch script ended without a final exit code, the node was lost, the launch failed) is
  submitted anew, within the restart budget. So is one whose node has fallen silent, before Slurm notices: its earlier
  job is then cancelled, and stays so when the node comes back.
* A group that a person cancelled by Slurm's means stays cancelled: the lighthouse is told that the group is lost.
* Slurm's scheduler makes no round when a job that can't end on one node frees another one, nor when a job on which
  others depend has begun: by default its next round is up to 30 s away. Request a round for a part that has just begun
  to wait for room.
* A replaced job that is still in the queue is cancelled, even if the watcher that replaced it died before doing so.

Every action may be requested twice, and by two watchers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part, rows_by_part
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import UNREPORTED, ending, part_status
from torchft_x.launch.slurm.rules.values import (
    Action,
    Cancel,
    LiftExclusions,
    LighthouseStatus,
    PartMemory,
    RecordSubmission,
    ReportLost,
    Reschedule,
    Resubmit,
    SkipBeginTime,
    read_memory,
)
from torchft_x.timing import TIMING

WINDOW = 3600.0
"""Seconds within which a part may be submitted anew `Manifest.retries` times."""


class Patience:
    """Time limits of the rules, in seconds."""

    forgotten = 30.0
    """Time for which a part is unknown to Slurm before it is submitted anew."""
    interrupted = 45.0
    """Time allowed for a submission under way: more than sbatch and the search for its ticket take."""
    lift = 90.0
    """Time for which a part may wait for room while nodes are excluded for it."""
    reschedule = 2.0
    """Pause between two requested rounds of Slurm's scheduler, which makes at most one in two or three seconds itself."""
    scheduled = 30.0
    """Time for which rounds are requested for a part that waits for room; Slurm's own come by then (bf_interval)."""
    refused = 10.0
    """Pause between a submission that Slurm has refused and the next one."""
    longest_pause = 60.0
    """Longest pause between two submissions of one part."""


class JobRestarts:
    """State machine of a job's restarts. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}  # group -> why
        self._reported_lost: dict[str, str] | None = {}  # `_lost` as last reported to the lighthouse
        self._back: set[str] = set()  # groups that run again although they were reported as lost
        self._parts: dict[str, PartMemory] = {}  # by the part's name
        self._manifest: Manifest  # of the poll in progress, as the next two
        self._heard: LighthouseStatus | None
        self._now: float
        self._rescheduled = float("-inf")  # time of the last requested round of Slurm's scheduler

    def remember(self, unix: float) -> dict[str, Any]:
        """Return the memory for the next watcher, for JSON. `unix` is the Unix time less this clock's, in seconds."""
        return {name: memory.to_json(unix) for name, memory in self._parts.items()}

    def recall(self, found: Any, unix: float, lost: Mapping[str, str]) -> None:
        """Take over another watcher's memory, and the groups that it reported as lost. Ignore entries of another shape."""
        self._lost = dict(lost)
        self._reported_lost = dict(lost)
        for name, text in found.items() if isinstance(found, Mapping) else ():
            memory = read_memory(text, unix)
            if memory is not None:
                memory.silent_since = None  # measured anew
                self._parts[str(name)] = memory

    def poll(self, manifest: Manifest, rows: Sequence[Row], heard: LighthouseStatus | None, now: float) -> list[Action]:
        """Return the actions that are due in a job that is not over. `rows` must be read after the manifest, `heard` after both.

        `heard` is None if the lighthouse doesn't answer.
        """
        self._manifest, self._heard, self._now = manifest, heard, now
        found = rows_by_part(manifest, rows)
        actions: list[Action] = []
        for part in manifest.parts:
            if not part.gone and part.job:
                memory = self._parts.setdefault(part.name, PartMemory())
                if found[part.name] is None and memory.waiting and any(row.array == part.array for row in rows):
                    # It is gone while others of its array are left: a task that is cancelled while it waits leaves no trace.
                    if memory.unknown_for(now) >= TIMING.watch_grace:
                        self._give_up(part, f"its job {part.job} was cancelled by Slurm's means while it waited")
                    continue
                actions += self._part(part, found[part.name], memory)
        actions += _replaced(manifest, rows)
        if self._lost != self._reported_lost:
            self._reported_lost = dict(self._lost)
            actions.append(ReportLost(dict(self._lost), frozenset(self._back)))
            self._back.clear()
        return actions

    def refused(self, part: Part, now: float) -> None:
        """Retry a part later that could not be submitted. The attempt does not count against the budget."""
        memory = self._parts[part.name]
        memory.not_before = now + Patience.refused
        memory.submitted.pop()

    def not_told(self, report: ReportLost) -> None:
        """Record that the report of lost groups failed, so that it is repeated."""
        self._reported_lost = None
        self._back |= report.back

    # --- one part ------------------------------------------------------------------------------------------------------

    def _part(self, part: Part, row: Row | None, memory: PartMemory) -> list[Action]:
        if part.job == SUBMITTING and row is not None:
            return [RecordSubmission(part, row.job)]
        if row is None:
            return self._unknown(part, memory)
        memory.begin(row)
        state = part_status(row).state
        if state in ALIVE:
            memory.unknown_since = None
            if self._lost.pop(_group(part), None) is not None:  # given up, and restarted by a person
                self._back.add(_group(part))
        if state == "PENDING":
            return self._pending(part, row, memory)
        memory.waits_since = None
        if row.state == "RUNNING":
            return self._running(part, memory)
        if state == "RUNNING" or part.name in self._lost or _group(part) in self._lost:
            return []
        return self._ended(part, row, memory)

    def _unknown(self, part: Part, memory: PartMemory) -> list[Action]:
        group, heard = _group(part), self._heard
        if group in self._lost or (
            group and (heard is None or heard.near(group, TIMING.watch_near) or group in heard.over)
        ):
            memory.unknown_since = None
            return []
        submitting = part.job == SUBMITTING
        patience = Patience.interrupted if submitting else Patience.forgotten
        if memory.unknown_for(self._now) < patience:
            return []
        why = "whoever submitted it was interrupted" if submitting else f"Slurm does not know {part.job} any more"
        return self._anew(part, memory, why)

    def _pending(self, part: Part, row: Row, memory: PartMemory) -> list[Action]:
        waits = row.state == "PENDING"
        if waits and row.reason == "BeginTime" and row.restarts > 0:  # requeued: its owner has not asked for that time
            memory.excluded, memory.waits_since = (), None
            return [SkipBeginTime(part)]
        # Slurm itself holds it. A job held by a person stays held.
        if row.reason.lower().replace("_", " ") == "launch failed requeued held":
            why = f"Slurm holds its job {part.job} after a failed launch"
            return self._anew(part, memory, why, exclude=memory.nodes)
        # It may wait for room: Slurm has many reasons, and shows a dependency for a while after it is met.
        if not waits or row.reason == "BeginTime" or "held" in row.reason.lower():
            memory.waits_since = None
            return []
        memory.waits_since = self._now if memory.waits_since is None else memory.waits_since
        since = self._now - memory.waits_since
        if memory.excluded and since >= Patience.lift:
            memory.excluded = ()
            return [LiftExclusions(part)]
        if since < Patience.scheduled and self._now - self._rescheduled >= Patience.reschedule:
            self._rescheduled = self._now
            return [Reschedule(part)]  # a round is for all parts
        return []

    def _running(self, part: Part, memory: PartMemory) -> list[Action]:
        now, heard = self._now, self._heard
        memory.excluded = ()
        memory.runs_since = now if memory.runs_since is None else memory.runs_since
        if part.kind != "trainer" or heard is None or _group(part) in heard.over:
            memory.silent_since = None
            return []
        missing = self._missing(part, memory, heard)
        if memory.silent_since is not None and now - memory.silent_since >= TIMING.watch_silent:
            why = f"has been silent for {now - memory.silent_since:.1f} s"
        elif min(now - memory.runs_since, heard.uptime) >= self._manifest.start_deadline and (
            missing := sorted(set(range(part.nodes)) - memory.came)  # as on a node that starts nothing
        ):
            why = f"has not reported within {self._manifest.start_deadline:g} s of its start"
        else:
            return []
        where = tuple(memory.nodes[k] for k in missing if k < len(memory.nodes))
        why = f"its supervisor on {', '.join(where) or '?'} {why}"
        return self._anew(part, memory, why, exclude=where)

    def _missing(self, part: Part, memory: PartMemory, heard: LighthouseStatus) -> list[int]:
        """Return the nodes whose supervisors had reported and are silent. If no group is heard, the lighthouse may be cut off."""
        near = heard.near(_group(part), TIMING.watch_near)
        memory.came |= near
        missing = sorted(memory.came - near)
        others = any(s.group != _group(part) and s.silent <= TIMING.watch_near for s in heard.supervisors)
        if not missing or not others or heard.uptime < TIMING.watch_young:
            memory.silent_since = None
            return []
        if memory.silent_since is None:
            mine = {s.node: s.silent for s in heard.supervisors if s.group == _group(part)}
            memory.silent_since = self._now - max(mine.get(node, 0.0) for node in missing)
        return missing

    def _ended(self, part: Part, row: Row, memory: PartMemory) -> list[Action]:
        if part.kind == "trainer" and self._heard is not None and _group(part) in self._heard.over:
            return []  # the lighthouse knows how it ended
        how, why = ending(row, part.kind)
        if how == "lost":
            return self._give_up(part, why)
        if how == UNREPORTED:
            if self._heard is None:
                memory.unknown_since = None
                return []
            if memory.unknown_for(self._now) < TIMING.watch_grace:
                return []
        elif how != "anew":
            return []
        return self._anew(part, memory, why)

    # --- the budget ----------------------------------------------------------------------------------------------------

    def _anew(self, part: Part, memory: PartMemory, why: str, exclude: tuple[str, ...] = ()) -> list[Action]:
        now = self._now
        if now < memory.not_before:
            return []
        while memory.submitted and now - memory.submitted[0] > WINDOW:
            memory.submitted.popleft()
        if len(memory.submitted) >= self._manifest.retries:
            return self._give_up(part, f"{why}, after {len(memory.submitted)} submissions within an hour")
        memory.submitted.append(now)  # the next one comes at once, later ones after 5, 10, 20 s ...
        memory.not_before = now + min(Patience.longest_pause, 5.0 * 2 ** min(len(memory.submitted) - 1, 6))
        memory.excluded, memory.waits_since = exclude, None
        return [Resubmit(part, why, exclude)]

    def _give_up(self, part: Part, why: str) -> list[Action]:
        """Give up a part: it isn't submitted again. For a part that is no group the lighthouse need not know."""
        self._lost.setdefault(_group(part) or part.name, why)
        return []


def _group(part: Part) -> str:
    """Return the group id of a trainer's part, or '' for another kind of part."""
    return str(part.number) if part.kind == "trainer" else ""


def _replaced(manifest: Manifest, rows: Sequence[Row]) -> list[Action]:
    earlier = {job for part in manifest.parts for job in part.earlier}
    current = {part.job for part in manifest.parts}
    there = [row for row in rows if row.app == manifest.app and row.job in earlier - current]
    jobs = tuple(row.job for row in there if row.state != "COMPLETING" and part_status(row).state in ALIVE)
    return [Cancel(jobs)] if jobs else []
