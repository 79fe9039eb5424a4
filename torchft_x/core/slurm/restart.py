"""Which parts of a job are started again, when, and on which nodes not. Pure: what the queue and the lighthouse say, in; what
is to be done, out.

* A part that Slurm has requeued need not wait for its BeginTime.
* A part that Slurm gave up (its batch script ended by no word of its own, the node was lost, the launch failed) is submitted
  anew, within the restart budget. So is one whose node has fallen silent, before Slurm finds out: what it was before is
  cancelled after that, and stays so when the node comes back.
* Whoever has cancelled a group by Slurm's means is respected: the lighthouse is told that it is lost.
* Slurm's scheduler does not look when a node is freed of a job that can't end on another one, nor when a job that others
  were to wait for has begun: its next round is up to 30 s away by default. A part that has just begun to wait for room asks
  for one.
* A job that was replaced and still is in the queue is cancelled, also if whoever replaced it did not live to do so.

Everything may be asked for twice, and by two at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.core.slurm.actions import (
    Action,
    Anew,
    Cancel,
    Heard,
    Kick,
    Lift,
    Over,
    Release,
    Reschedule,
    Settle,
    TellLost,
)
from torchft_x.core.slurm.ending import NO_WORD, ending
from torchft_x.core.slurm.manifest import SUBMITTING, Manifest, Part, rows_by_part
from torchft_x.core.slurm.memory import PartMemory, from_json
from torchft_x.core.slurm.queue import Row
from torchft_x.core.slurm.state import told
from torchft_x.timing import TIMING

WINDOW = 3600.0
"""Seconds in which a part may be submitted anew as often as `Manifest.retries` says."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds."""

    silent: float = TIMING.watch_silent
    """Without a word from a supervisor whose node Slurm takes for alive. The others train on after 1.5 (docs/design.md)."""
    near: float = TIMING.watch_near
    """Who was heard within these is there."""
    young: float = TIMING.watch_young
    """A lighthouse that has served for less has not heard of everybody yet."""
    settle: float = TIMING.watch_settle
    """After its end for what the lighthouse knows of it to arrive."""
    forgotten: float = 30.0
    """That a part is unknown to Slurm."""
    interrupted: float = 45.0
    """For a submission that is under way: more than sbatch and the search for its ticket take."""
    lift: float = 10.0
    """That a part may wait for resources while a bad node is excluded for it."""
    lift_silent: float = 90.0
    """The same where it was excluded though Slurm takes it for good."""
    reschedule: float = 2.0
    """Between two rounds of Slurm's scheduler that are asked for: by itself it makes one in two or three seconds at most."""
    scheduled: float = 30.0
    """For which a part that waits for room asks for rounds: Slurm's own have come by then (bf_interval)."""
    longest_pause: float = 60.0
    """Between two submissions of one part."""


class Restarts:
    """The machine. `lost`: what the lighthouse was told before. Times are monotonic seconds."""

    def __init__(self, lost: Mapping[str, str] | None = None, patience: Patience = Patience()) -> None:
        self._lost = dict(lost or {})  # group -> why
        self._told: dict[str, str] | None = dict(self._lost)  # the same, as the lighthouse was told it
        self._patience = patience
        self._parts: dict[str, PartMemory] = {}  # by the part's name
        self._rescheduled = float("-inf")  # when a round of Slurm's scheduler was asked for

    def remember(self, unix: float) -> dict[str, Any]:
        """For whoever watches next; JSON-able. `unix`: unix seconds less those of this clock, as of `recall`."""
        return {name: memory.to_json(unix) for name, memory in self._parts.items()}

    def recall(self, found: Any, unix: float, lost: Mapping[str, str]) -> None:
        """What another watcher has remembered, and told the lighthouse. What is of another shape is left out."""
        self._lost = dict(lost)
        self._told = dict(lost)
        for name, text in found.items() if isinstance(found, Mapping) else ():
            memory = from_json(text, unix)
            if memory is not None:
                self._parts[str(name)] = memory

    @property
    def lost(self) -> Mapping[str, str]:
        return dict(self._lost)

    def wants_nodes(self, manifest: Manifest, rows: Sequence[Row]) -> bool:
        """Whether the states of nodes matter to what is to be done now."""
        found = rows_by_part(manifest, rows)
        alive = (found[part.name] for part in manifest.parts if not part.gone)
        return any(row is not None and (_waits_for_time(row) or _held(row)) for row in alive)

    def look(
        self,
        manifest: Manifest,
        rows: Sequence[Row],
        heard: Heard | None,
        nodes: Mapping[str, str],
        now: float,
    ) -> list[Action]:
        """`rows`: of the queue, after the manifest was read; `heard`: after both, None if the lighthouse doesn't answer.
        `nodes`: state by name, as far as it is known."""
        if manifest.cancelled or manifest.outcome is not None:
            return [Over()]
        found = rows_by_part(manifest, rows)
        actions: list[Action] = []
        for part in manifest.parts:
            if not part.gone and part.job:
                memory = self._parts.setdefault(part.name, PartMemory())
                if found[part.name] is None and memory.waiting and any(row.array == part.array for row in rows):
                    actions += self._vanished(part, memory, now)
                    continue
                actions += self._part(part, found[part.name], memory, manifest, heard, nodes, now)
        actions += _replaced(manifest, rows)
        if self._lost != self._told:
            self._told = dict(self._lost)
            actions.append(TellLost(dict(self._lost)))
        return actions + self._reschedule(manifest, found, now)

    def refused(self, part: Part, now: float) -> None:
        """It could not be submitted: later again. That is no restart."""
        memory = self._parts.setdefault(part.name, PartMemory())
        memory.refusals += 1
        memory.not_before = now + min(self._patience.longest_pause, 5.0 * 2 ** min(memory.refusals - 1, 6))
        if memory.submitted:
            memory.submitted.pop()

    def submitted(self, part: Part) -> None:
        """It was."""
        self._parts.setdefault(part.name, PartMemory()).refusals = 0

    def not_told(self) -> None:
        """The lighthouse could not be told who is lost."""
        self._told = None

    # --- one part ------------------------------------------------------------------------------------------------------

    def _part(
        self,
        part: Part,
        row: Row | None,
        memory: PartMemory,
        manifest: Manifest,
        heard: Heard | None,
        nodes: Mapping[str, str],
        now: float,
    ) -> list[Action]:
        if part.job == SUBMITTING and row is not None:
            return [Settle()]
        if row is None:
            return self._unknown(part, memory, manifest, heard, now)
        memory.begin(row)
        state = told(row).state
        if state in ("PENDING", "RUNNING"):
            memory.unknown_since = None
            self._lost.pop(_group(part), None)  # whoever has given it up, somebody has started it again
        if state == "PENDING":
            return self._pending(part, row, memory, manifest, nodes, now)
        memory.waits_since = None
        if row.state == "RUNNING":
            return self._running(part, memory, manifest, heard, now)
        if state == "RUNNING" or part.name in self._lost or _group(part) in self._lost:
            return []
        return self._ended(part, row, memory, manifest, heard, now)

    def _vanished(self, part: Part, memory: PartMemory, now: float) -> list[Action]:
        """It waited, and of its array only others are left: of a task that is cancelled then no trace remains."""
        memory.unknown_since = now if memory.unknown_since is None else memory.unknown_since
        if now - memory.unknown_since < self._patience.settle:
            return []
        return self._give_up(part, f"its job {part.job} was cancelled by Slurm's means while it waited")

    def _unknown(
        self, part: Part, memory: PartMemory, manifest: Manifest, heard: Heard | None, now: float
    ) -> list[Action]:
        known = _group(part) in self._lost or (part.kind == "trainer" and _is_well(part, heard, self._patience))
        if known or (part.kind == "trainer" and heard is None):
            memory.unknown_since = None
            return []
        if memory.unknown_since is None:
            memory.unknown_since = now
        submitting = part.job == SUBMITTING
        if now - memory.unknown_since < (self._patience.interrupted if submitting else self._patience.forgotten):
            return []
        why = "whoever submitted it was interrupted" if submitting else f"Slurm does not know {part.job} any more"
        return self._anew(part, memory, manifest, why, now)

    def _pending(
        self, part: Part, row: Row, memory: PartMemory, manifest: Manifest, nodes: Mapping[str, str], now: float
    ) -> list[Action]:
        if _waits_for_time(row):
            memory.waits_since = None
            memory.excluded = tuple(node for node in memory.nodes if is_bad(nodes.get(node, "")))
            memory.trusted = False
            return [Kick(part, memory.excluded)]
        if _held(row):
            if now < memory.not_before or not self._may(memory, manifest, now):
                return []
            self._count(memory, now)
            memory.excluded, memory.trusted = memory.nodes, True
            return [Release(part, memory.excluded)]
        if not memory.excluded:
            return []
        if memory.waits_since is None:
            memory.waits_since = now
        limit = self._patience.lift_silent if memory.trusted else self._patience.lift
        if now - memory.waits_since < limit:
            return []
        memory.excluded, memory.waits_since = (), None
        return [Lift(part)]

    def _reschedule(self, manifest: Manifest, found: Mapping[str, Row | None], now: float) -> list[Action]:
        """One part is enough: a round is for all."""
        first = None
        for part in manifest.parts:
            row, memory = found[part.name], self._parts.get(part.name)
            if memory is None or row is None or part.gone:
                continue
            if not _waits_for_room(row):
                memory.queued_since = None
                continue
            memory.queued_since = now if memory.queued_since is None else memory.queued_since
            if first is None and now - memory.queued_since < self._patience.scheduled:
                first = Reschedule(part)
        if first is None or now - self._rescheduled < self._patience.reschedule:
            return []
        self._rescheduled = now
        return [first]

    def _running(
        self, part: Part, memory: PartMemory, manifest: Manifest, heard: Heard | None, now: float
    ) -> list[Action]:
        memory.excluded = ()
        memory.runs_since = now if memory.runs_since is None else memory.runs_since
        missing = self._missing(part, memory, heard, now)
        if memory.silent_since is not None and now - memory.silent_since >= self._patience.silent:
            why = f"has been silent for {now - memory.silent_since:.1f} s"
        elif missing := self._never_came(part, memory, manifest, heard, now):
            why = f"has not reported within {manifest.start_deadline:g} s of its start"
        else:
            return []
        where = tuple(memory.nodes[k] for k in missing if k < len(memory.nodes))
        why = f"its supervisor on {', '.join(where) or '?'} {why}"
        return self._anew(part, memory, manifest, why, now, exclude=where)

    def _never_came(
        self, part: Part, memory: PartMemory, manifest: Manifest, heard: Heard | None, now: float
    ) -> list[int]:
        """Return the nodes of the group whose supervisors have not come in time: of a node that starts nothing, say."""
        assert memory.runs_since is not None
        if part.kind != "trainer" or heard is None or _group(part) in heard.over:
            return []
        if min(now - memory.runs_since, heard.uptime) < manifest.start_deadline:
            return []
        return sorted(set(range(part.nodes)) - memory.came)

    def _missing(self, part: Part, memory: PartMemory, heard: Heard | None, now: float) -> list[int]:
        """Nodes of the group whose supervisors were there and are not. Where nobody is heard it may be the lighthouse that is
        cut off."""
        if part.kind != "trainer" or heard is None or _group(part) in heard.over:
            memory.silent_since = None
            return []
        near = heard.near(_group(part), self._patience.near)
        memory.came |= near
        missing = sorted(memory.came - near)
        others = any(s.group != _group(part) and s.silent <= self._patience.near for s in heard.supervisors)
        if not missing or not others or heard.uptime < self._patience.young:
            memory.silent_since = None
            return []
        if memory.silent_since is None:
            mine = {s.node: s.silent for s in heard.supervisors if s.group == _group(part)}
            memory.silent_since = now - max(mine.get(node, 0.0) for node in missing)
        return missing

    def _ended(
        self, part: Part, row: Row, memory: PartMemory, manifest: Manifest, heard: Heard | None, now: float
    ) -> list[Action]:
        if part.kind == "trainer" and heard is not None and _group(part) in heard.over:
            return []  # the lighthouse knows how
        how, why = ending(row, part.kind)
        if how == "lost":
            return self._give_up(part, why)
        if how == NO_WORD:
            if part.kind != "trainer" or heard is None:
                memory.unknown_since = None
                return []
            memory.unknown_since = now if memory.unknown_since is None else memory.unknown_since
            if now - memory.unknown_since < self._patience.settle:
                return []
        elif how != "anew":
            return []
        return self._anew(part, memory, manifest, why, now)

    # --- the budget ----------------------------------------------------------------------------------------------------

    def _anew(
        self,
        part: Part,
        memory: PartMemory,
        manifest: Manifest,
        why: str,
        now: float,
        exclude: tuple[str, ...] = (),
    ) -> list[Action]:
        if now < memory.not_before:
            return []
        if not self._may(memory, manifest, now):
            return self._give_up(part, f"{why}, after {len(memory.submitted)} submissions within an hour")
        self._count(memory, now)
        memory.excluded, memory.trusted = exclude, bool(exclude)
        memory.waits_since = None
        return [Anew(part, why, exclude)]

    def _may(self, memory: PartMemory, manifest: Manifest, now: float) -> bool:
        while memory.submitted and now - memory.submitted[0] > WINDOW:
            memory.submitted.popleft()
        return len(memory.submitted) < manifest.retries

    def _count(self, memory: PartMemory, now: float) -> None:
        """The first comes at once, later ones after a pause: 5, 10, 20 s ..."""
        memory.submitted.append(now)
        memory.not_before = now + min(self._patience.longest_pause, 5.0 * 2 ** min(len(memory.submitted) - 1, 6))

    def _give_up(self, part: Part, why: str) -> list[Action]:
        """Of what is no group the lighthouse need not know; it isn't submitted again, either."""
        self._lost.setdefault(_group(part) or part.name, why)
        return []


def is_bad(state: str) -> bool:
    """Of a node, in Slurm's words; a star behind it: it doesn't answer."""
    word = state.lower()
    return "*" in word or word.startswith(("down", "drain", "fail", "error", "power", "reboot", "inval", "future"))


def _group(part: Part) -> str:
    """As the lighthouse names it; of another kind of part empty."""
    return str(part.number) if part.kind == "trainer" else ""


def _is_well(part: Part, heard: Heard | None, patience: Patience) -> bool:
    if heard is None:
        return False
    return bool(heard.near(_group(part), patience.near)) or _group(part) in heard.over


def _waits_for_time(row: Row) -> bool:
    """Because it was requeued; not because its owner has asked for it."""
    return row.state == "PENDING" and row.reason == "BeginTime" and row.restarts > 0


def _waits_for_room(row: Row) -> bool:
    """Slurm's reasons are many, and of a dependency that is met it says for a while that it isn't."""
    return row.state == "PENDING" and row.reason != "BeginTime" and "held" not in row.reason.lower()


def _held(row: Row) -> bool:
    """By Slurm itself: what a person holds stays held."""
    return row.reason.lower().replace("_", " ") == "launch failed requeued held"


def _replaced(manifest: Manifest, rows: Sequence[Row]) -> list[Action]:
    earlier = {job for part in manifest.parts for job in part.earlier}
    current = {part.job for part in manifest.parts}
    there = [row for row in rows if row.app == manifest.app and row.job in earlier - current]
    jobs = tuple(row.job for row in there if row.state != "COMPLETING" and told(row).state in ("PENDING", "RUNNING"))
    return [Cancel(jobs)] if jobs else []
