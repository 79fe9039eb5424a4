"""Losses of members and their cost: each is divided into the phases from the fault to the complete job.

An attempt is lost if its replica id is in one quorum and not in the next. The supervisors' events tell how its
processes ended, those of chaos its faults, and those of the other groups when they knew.
"""

from __future__ import annotations

import signal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from torchft_x.core.types import group_of, readable
from torchft_x.observe.console import clause
from torchft_x.observe.run.course import Course
from torchft_x.observe.run.reading import Note
from torchft_x.observe.run.values import AttemptSummary, Fault, Loss, Quorum

_BELONGS = 120.0  # seconds after a fault within which its consequences are seen
_WHEN_TOLD_TO_END = (0, -signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes
_SLACK = 0.05  # seconds by which a fault may seem later than its consequence


class Losses:
    """Finder of a run's losses. `attempts` are in the order of their beginning, `notes` in the order of time."""

    def __init__(
        self, notes: Sequence[Note], attempts: Sequence[AttemptSummary], quorums: Sequence[Quorum], course: Course
    ) -> None:
        self.notes = notes  # in order of time
        self.attempts = attempts
        self.quorums = quorums
        self.course = course
        self._times = [note.t for note in notes]
        self._by_id = {a.replica_id: a for a in attempts if a.replica_id}
        self._of_group: dict[str, list[AttemptSummary]] = defaultdict(list)
        for attempt in attempts:
            self._of_group[attempt.group].append(attempt)
        self._reports: dict[str, list[Note]] = defaultdict(list)  # by replica id: notes that report its loss
        for note in notes:
            for who in _said_gone(note):
                self._reports[who].append(note)
        self._aborts = _aborts(notes)
        self._in: dict[str, list[int]] = defaultdict(list)  # by replica id: indices of the quorums with it
        for k, quorum in enumerate(quorums):
            for who in quorum.members:
                self._in[who].append(k)

    def find(self, faults: Sequence[Fault]) -> list[Loss]:
        """Return all losses in the order of time, each with the fault that caused it."""
        found = [*self._departures(), *self._alone()]
        found = sorted([*found, *self._lighthouses()], key=lambda loss: loss.t)
        return sorted(_with_faults(found, faults), key=lambda loss: loss.t)

    def _departures(self) -> Iterator[Loss]:
        for k, (before, now) in enumerate(pairwise(self.quorums)):
            for who in sorted(set(before.members) - set(now.members)):
                loss = self._departure(who, before, now, k + 1)
                if loss.kind != "left" or loss.committed is not None:  # a leave without a later commit is the job's end
                    yield loss

    def _departure(self, who: str, before: Quorum, now: Quorum, index: int) -> Loss:
        """Return the loss of one that is missing in `now`, the first quorum without it; `index` is that of `now`."""
        attempt = self._by_id.get(who)
        came = now.received if now.received is not None else now.t
        reports = [note for note in self._reports.get(who, []) if before.t - _SLACK <= note.t <= came + _SLACK]
        later = self._in[who][bisect_right(self._in[who], index) :]
        again = self.quorums[later[0]] if later else None
        ended = attempt.ended if attempt is not None and again is None else None
        first = min(
            [
                came,
                *(note.t for note in reports),
                *(t for group, t in self._aborts[before.id] if group != group_of(who)),
            ]
        )
        fault = min(ended, first) if ended is not None else None
        raised = ended is not None and attempt is not None and attempt.code not in _WHEN_TOLD_TO_END
        if not raised and any(note.of.get("left") or note.name == "leave" for note in reports):
            kind = "left"
        elif again is not None:
            kind = "left out"
        elif attempt is None or ended is None or attempt.code == 0:
            kind = "lost"
        elif attempt.reason.startswith("hung"):
            kind, fault = "hung", None  # its processes were ended long after it was left out
        else:
            kind = "died"
        reason = attempt.reason if kind in ("died", "hung") and attempt is not None else _reason(reports)
        if kind == "lost":  # the keeper that restarts supervisors knows how this one ended
            keepers = (
                n for n in self._between(first, came) if n.log.role == "keeper" and n.of.get("group") == group_of(who)
            )
            reason = _reason(n for n in keepers if n.name == "restart") or reason
        loss = self._taken_apart(group_of(who), kind, reason, fault, first, came, now.id)
        return self._returned(loss, attempt, again)

    def _taken_apart(
        self, group: str, kind: str, reason: str, fault: float | None, detected: float, came: float, quorum: int
    ) -> Loss:
        """Return a loss with its phases up to the others' next commit."""
        began = detected if fault is None else fault
        i = self.course.after(began - _SLACK, quorum)
        committed = self.course.t[i] if i is not None else None
        end = came if committed is None else committed
        released = [n.t for n in self._between(began, end) if n.name == "abort" and n.log.group != group]
        return Loss(
            kind=kind,
            group=group,
            reason=clause(readable(reason)),
            fault=fault,
            detected=detected,
            released=max(released, default=None),
            regrouped=came,
            committed=committed,
            stood=self.course.longest(began, end),
            dropped=self._steps("drop", group, began, end),
            redone=self._steps("redo", group, began, end),
        )

    def _returned(self, loss: Loss, attempt: AttemptSummary | None, again: Quorum | None) -> Loss:
        """Add the phases until the group is back: by the same attempt in the quorum `again`, or by its next attempt."""
        if again is not None:
            i = self.course.after(again.t, again.id)
            loss = replace(loss, back=self.course.t[i] if i is not None else None)
        else:
            later = [
                x
                for x in self._of_group[loss.group]
                if x is not attempt and x.joined is not None and x.joined > loss.t - _SLACK
            ]
            back = next((x for x in later if x.first_commit is not None), None)
            loss = replace(loss, restarted=later[0].joined if later else None)
            if back is not None:
                loss = replace(loss, healed=back.healed, back=back.first_commit)
        if loss.back is not None:
            before = self.course.contributors(loss.t - _SLACK)
            loss = replace(loss, whole=self.course.full_after(loss.back - _SLACK, before))
        until = loss.back if loss.back is not None else self.notes[-1].t
        return replace(
            loss,
            without=self.course.number(loss.regrouped or loss.t, loss.back),
            thrown=sum(n.of.get("steps", 0) for n in self._between(loss.t, until) if n.name == "new_lineage"),
        )

    def _alone(self) -> Iterator[Loss]:
        """Yield the losses of failed attempts in no quorum, or in the last; one that ends with the job is no loss."""
        unfinished = _unfinished(self.notes)
        last = len(self.quorums) - 1
        for attempt in self.attempts:
            where = self._in.get(attempt.replica_id, [])
            group, t = attempt.group, attempt.ended
            if t is None or (group, attempt.number) not in unfinished or (where and where[-1] != last):
                continue
            reports = self._reports.get(attempt.replica_id, [])
            loss = self._taken_apart(group, "died", attempt.reason, t, t, t, 0)
            loss = replace(
                loss, detected=min((note.t for note in reports), default=None), regrouped=None, released=None
            )
            if not where:  # the others did not wait for it
                loss = replace(loss, committed=None, stood=0.0, dropped=0, redone=0)
            yield self._returned(loss, attempt, None)

    def _lighthouses(self) -> Iterator[Loss]:
        for note in self.notes:
            if note.name != "restart" or note.log.role != "lighthouse":
                continue
            after = self._between(note.t, note.t + _BELONGS)
            serves = next((n.t for n in after if n.name == "start" and n.log.role == "lighthouse"), None)
            loss = Loss(kind="lighthouse", fault=note.t, reason=clause(readable(note.of.get("reason", ""))))
            until = serves if serves is not None else note.t
            yield replace(loss, back=serves, stood=self.course.longest(note.t, until))

    def _between(self, begin: float, end: float) -> Sequence[Note]:
        return self.notes[bisect_left(self._times, begin - _SLACK) : bisect_right(self._times, end + _SLACK)]

    def _steps(self, name: str, group: str, begin: float, end: float) -> int:
        """Return the number of the other groups' steps with an event `name`. A step counts once for all groups."""
        return len({n.of.get("step") for n in self._between(begin, end) if n.name == name and n.log.group != group})


def _said_gone(note: Note) -> tuple[str, ...]:
    if note.name == "member_lost":
        lost = note.of.get("lost", ())
        return (*lost, note.of["replica_id"]) if note.log.role == "lighthouse" and "replica_id" in note.of else lost
    if note.name == "leave":
        who = note.of.get("replica_id") or note.log.replica_id
        return (who,) if who else ()
    return ()


def _aborts(notes: Iterable[Note]) -> dict[int, list[tuple[str, float]]]:
    """Return (group, time) of each release of collectives, by quorum."""
    found: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for note in notes:
        if note.name == "abort":
            found[note.of.get("quorum", 0)].append((note.log.group, note.t))
    return found


def _unfinished(notes: Iterable[Note]) -> set[tuple[str, int]]:
    """Return the attempts (group, number) after which the supervisor started another one, or gave up."""
    ended: dict[str, int] = {}  # by group: attempt of its newest end
    found = set()
    for note in notes:
        if note.log.role == "supervisor":
            if note.name == "exit":
                ended[note.log.group] = note.of.get("attempt", 0)
            elif note.log.group in ended and (note.name == "restart" or _gave_up(note)):
                found.add((note.log.group, ended[note.log.group]))
    return found


def _gave_up(note: Note) -> bool:
    """Return whether a supervisor gave up by itself. One that was ordered to stop ends with a signal's code."""
    return note.name == "error" and 0 < note.of.get("code", 0) < 128


def _reason(reports: Iterable[Note]) -> str:
    return next((str(note.of["reason"]) for note in reports if note.of.get("reason")), "")


def stood(losses: Iterable[Loss], course: Course) -> float:
    """Return the seconds in which the losses prevented any commit. Overlapping times count once."""
    gaps: set[int] = set()
    for loss in losses:
        end = loss.committed if loss.group else loss.back
        if end is not None and loss.stood:
            gaps.update(course.gaps(loss.t, end))
    return sum(map(course.stood, gaps))


def faults(notes: Iterable[Note]) -> list[Fault]:
    """Return the faults that chaos made, in the order of time."""
    return [
        Fault(
            t=note.t,
            kind=note.of.get("kind", ""),
            group=note.of.get("group", ""),
            rank=note.of.get("rank"),
            number=note.of.get("number", 0),
            duration=note.of.get("duration"),
        )
        for note in notes
        if note.name == "fault" and note.log.role == "chaos"
    ]


def _with_faults(losses: Sequence[Loss], faults: Sequence[Fault]) -> list[Loss]:
    """Assign each fault to the first loss of its group that it caused, or else make an entry of its own for it."""
    left = list(losses)
    out: list[Loss] = []
    for k, fault in enumerate(faults):
        until = min([fault.t + _BELONGS, *(f.t for f in faults[k + 1 :] if f.group == fault.group)])
        mine = next((x for x in left if x.group == fault.group and fault.t - _SLACK <= x.t < until), None)
        if mine is None:
            out.append(Loss(kind="nothing", fault=fault.t, group=fault.group, by=fault))
            continue
        left.remove(mine)
        out.append(replace(mine, by=fault, fault=min(fault.t, mine.t)))
    return [*out, *left]
