"""Combination of a run's files into a `Run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from torchft_x.observe.console import plural
from torchft_x.observe.events import incomplete
from torchft_x.observe.run import attempts, course, losses
from torchft_x.observe.run.reading import Log, Note, RunFiles, read
from torchft_x.observe.run.values import Checkpoints, Lineage, Run, Slow
from torchft_x.observe.view.speed import STEPS, SlowGroups

_ERRORS = 50  # sentences that are kept


def read_run(run_dir: str | os.PathLike[str]) -> Run | None:
    """Read a run as far as it is written. Return None if no event of it is."""
    heard = read(run_dir)
    return fold(heard, os.fspath(run_dir), tuple(incomplete(run_dir))) if heard.logs else None


def fold(heard: RunFiles, run_dir: str, cut: tuple[str, ...] = ()) -> Run:
    """Combine the content of a run's files, of one process at least. `cut`: incomplete logs."""
    logs, notes = heard.logs, heard.notes
    ended = max(log.last + log.boot for log in logs)
    lineages = [
        Lineage(t=n.t, quorum=n.of.get("quorum", 0), steps=n.of.get("steps", 0), reason=n.of.get("reason", ""))
        for n in notes
        if n.name == "new_lineage"
    ]
    steps = course.Course(logs, sorted(x.quorum for x in lineages))
    every, made = attempts.attempts(logs, notes), attempts.quorums(notes)
    faults = losses.faults(notes)
    lost = losses.Losses(notes, every, made, steps).find(faults)
    code, verdict, told = _verdict(notes)
    logged = max(steps.step, default=-1) + 1
    return Run(
        run_dir=run_dir,
        began=min(log.first + log.boot for log in logs),
        ended=ended,
        code=code,
        verdict=verdict,
        steps=max(logged, told),
        unlogged=max(0, told - logged),
        trained=(steps.t[0], steps.t[-1]) if len(steps) else None,
        goodput=course.goodput(steps),
        step_times=course.step_times(logs),
        samples=course.samples(steps),
        slow=tuple(slow(logs)),
        dropped=len({(n.of.get("step"), n.of.get("quorum")) for n in notes if n.name == "drop"}),
        redone=len({n.of.get("step") for n in notes if n.name == "redo"}),
        rate=course.rate(steps),
        groups=tuple(attempts.groups(logs, every, made, ended)),
        quorums=tuple(made),
        losses=tuple(lost),
        stood=losses.stood(lost, steps),
        faults=tuple(faults),
        lineages=tuple(lineages),
        checkpoints=_checkpoints(notes),
        curve=course.curve(notes),
        errors=tuple(_errors(notes)),
        events=heard.events,
        unreadable=heard.unreadable,
        incomplete=cut,
    )


def _verdict(notes: list[Note]) -> tuple[int | None, str, int]:
    """Return the job's exit code, the reason and the number of commits, as its lighthouse wrote them at the end."""
    said = [n for n in notes if n.log.role == "lighthouse" and n.name in ("start", "exit")]
    if said and said[-1].name == "exit":
        end = said[-1].of
        return end.get("code"), str(end.get("reason", "")), end.get("step", 0)
    return None, "", 0


def _checkpoints(notes: list[Note]) -> Checkpoints:
    made = [n.of for n in notes if n.name == "checkpoint"]
    return Checkpoints(
        number=len(made),
        step=max((of["step"] for of in made if "step" in of), default=None),
        seconds=sum(of.get("duration", 0.0) for of in made),
        bytes=sum(of.get("bytes", 0.0) for of in made),
    )


def _errors(notes: list[Note]) -> list[str]:
    """Return the errors other than lost members, each sentence once, with its number."""
    seen: dict[str, int] = {}
    for n in notes:
        if n.name == "error" and n.of.get("reason"):
            who = f"group {n.log.group}: " if n.log.group else f"{n.log.role}: "
            seen[who + n.of["reason"]] = seen.get(who + n.of["reason"], 0) + 1
    told = [text + (f" ({k} times)" if k > 1 else "") for text, k in seen.items()]
    rest = len(told) - _ERRORS
    return told[:_ERRORS] + ([f"and {plural(rest, 'other')}"] if rest > 0 else [])


def slow(logs: Sequence[Log]) -> list[Slow]:
    """Return the spans of steps for which a group was slow, in the order of their beginning.

    Each 50 steps are judged once, by the medians of the groups that made all of them.
    """
    own_parts: dict[int, dict[str, list[float]]] = {}  # by number of the span, and group
    for log in logs:
        if log.role == "trainer" and not log.rank:
            for step, seconds in zip(log.commits.step, log.commits.own_parts, strict=True):
                own_parts.setdefault(step // STEPS, {}).setdefault(log.group, []).append(seconds)
    rule, found = SlowGroups(), list[Slow]()
    now: dict[str, int] = {}  # group that is slow -> index of its newest span in `found`
    for number, parts in sorted(own_parts.items()):
        own = {name: median(seconds) for name, seconds in parts.items() if len(seconds) >= STEPS}
        named = rule.poll({name: seconds for name, seconds in own.items() if seconds})
        now = {name: at for name, at in now.items() if name in named}
        for name, part in named.items():
            begin, end = number * STEPS, (number + 1) * STEPS - 1
            if name not in now:
                now[name] = len(found)
                found.append(Slow(group=name, begin=begin, end=end, slower=part))
            else:
                last = found[now[name]]
                found[now[name]] = Slow(group=name, begin=last.begin, end=end, slower=max(last.slower, part))
    return found
