"""The figures of a run, alone or compared with another one, for a terminal and as JSON."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

from torchft_x.observe.console import harmless, plural
from torchft_x.observe.run.values import Loss, Run
from torchft_x.observe.view.speed import slower
from torchft_x.timing import RECENT
from torchft_x.units import amount, clock, seconds

_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a job stopped by a person
_MOST = 60  # losses that are listed


class Figure(NamedTuple):
    name: str
    of: Callable[[Run], float | None]
    words: Callable[[float], str]


_count, _number = "{:,.0f}".format, "{:.4g}".format


def usual(losses: Sequence[Loss], phase: str) -> float | None:
    """Return the median seconds from a loss's beginning to this phase, over the groups' losses that reached it."""
    found = [dict(loss.phases)[phase] for loss in losses if phase in dict(loss.phases) and loss.group]
    return median(found) if found else None


def lost(run: Run) -> list[Loss]:
    """Return the losses of groups, without graceful leaves and faults that had no effect."""
    return [x for x in run.losses if x.group and x.kind not in ("left", "nothing")]


def _rate(run: Run) -> float | None:
    if run.goodput is None or run.trained is None:
        return None
    return run.goodput.batches / max(run.trained[1] - run.trained[0], 1e-9)


FIGURES = (
    Figure("steps committed", lambda r: r.steps, _count),
    Figure("from the first commit to the last", lambda r: r.trained[1] - r.trained[0] if r.trained else None, seconds),
    Figure("goodput", lambda r: r.goodput.share if r.goodput else None, lambda v: f"{100 * v:.1f} %"),
    Figure("batches committed a second", _rate, _number),
    Figure("a usual step of all groups", lambda r: r.goodput.usual if r.goodput else None, seconds),
    Figure("step, 99 of 100 are quicker", lambda r: r.step_times.p99 if r.step_times else None, seconds),
    Figure("losses of groups", lambda r: len(lost(r)), _count),
    Figure("losses of the lighthouse", lambda r: sum(not x.group for x in r.losses), _count),
    Figure("until somebody knew (median)", lambda r: usual(lost(r), "detected"), seconds),
    Figure("until the others' next commit (median)", lambda r: usual(lost(r), "committed"), seconds),
    Figure("until the group's own next commit (median)", lambda r: usual(lost(r), "back"), seconds),
    Figure("seconds without a commit, in all", lambda r: r.stood, seconds),
    Figure("steps dropped", lambda r: r.dropped, _count),
    Figure("steps reduced again", lambda r: r.redone, _count),
    Figure("steps lost with all who held them", lambda r: sum(x.steps for x in r.lineages), _count),
    Figure("checkpoints", lambda r: r.checkpoints.number, _count),
    Figure("sent in reductions", lambda r: r.bytes, amount),
    Figure("newest loss", lambda r: r.curve[-1].loss if r.curve else None, _number),
)


def words(figure: Figure, run: Run) -> str:
    value = figure.of(run)
    return "-" if value is None else figure.words(value)


def ratio(figure: Figure, run: Run, other: Run) -> str:
    """Return the ratio of this run's figure to the other's, as a text; '' if it is unknown."""
    mine, theirs = figure.of(run), figure.of(other)
    return f"{mine / theirs:.2f} x" if mine is not None and theirs else ""


def state(run: Run, now: float) -> str:
    """Describe the run's state at `now` (unix seconds) in a sentence."""
    if run.code is not None:
        bad = "was stopped" if run.code in _STOPPED else "failed"
        how = "The job ended well" if run.code == 0 else f"The job {bad} (exit code {run.code})"
        return f"{how}: {run.verdict}" if run.verdict and run.code else f"{how}."
    age = max(0.0, now - run.ended)
    if age < RECENT:
        return f"The job goes on: its newest event is {seconds(age)} old."
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.ended))
    return f"The end of the job was not written: its newest event is of {when}."


def samples(run: Run) -> str:
    """Describe what became of the samples; '' if the script chose its data itself."""
    s = run.samples
    return "" if s is None else f"{s.committed:,} committed, {s.repeated:,} repeated, {s.debt:,} in debt"


def slow(run: Run) -> list[str]:
    """Return a sentence for each of the first spans of steps for which a group was slower than the others."""
    found = [f"Group {s.group} in steps {s.begin:,} to {s.end:,}: {slower(s.slower)}." for s in run.slow[:20]]
    rest = len(run.slow) - len(found)
    return [*found, f"And {rest} more times that a group was slower (--json has all)."] if rest > 0 else found


def kinds(losses: Sequence[Loss]) -> str:
    """Return the number of losses by kind, e.g. ``4 died, 1 left out``."""
    found = Counter(loss.kind if loss.group else "lighthouse" for loss in losses)
    return ", ".join(f"{number} {kind}" for kind, number in found.most_common()) or "none"


def doubts(run: Run) -> list[str]:
    """Return sentences about the limits of the figures' accuracy."""
    found = []
    if run.incomplete:
        more = f" and {len(run.incomplete) - 1} more" if len(run.incomplete) > 1 else ""
        found.append(f"{run.incomplete[0]}{more} could not be written to the end (disk full?).")
    if run.unlogged:
        found.append(
            f"The logs end at step {run.steps - run.unlogged:,} of {run.steps:,} (disk full?): the figures are of the steps "
            "before."
        )
    if run.unreadable:
        found.append(f"{plural(run.unreadable, 'line')} of the event logs can't be read and were left out.")
    return found


def as_json(run: Run, now: float) -> dict[str, Any]:
    """Return the whole run as JSON values; docs/operate.md#what-a-run-cost has the fields."""
    made = asdict(run)
    for loss, value in zip(made["losses"], run.losses, strict=True):
        loss["phases"] = dict(value.phases)
    made["state"] = state(run, now)
    made["figures"] = {f.name: f.of(run) for f in FIGURES}
    return made


def summary(run: Run, now: float, other: Run | None = None) -> str:
    """Return the summary of a run at `now` (unix seconds). `other`: a run to compare with."""
    lines = [f"{harmless(run.run_dir)}: {harmless(state(run, now), 400)}"]
    if other is not None:
        lines.append(f"against {harmless(other.run_dir)}: {harmless(state(other, now), 400)}")
    lines += ["", *_figures(run, other)]
    if run.losses:
        lines += [
            "",
            f"{plural(len(run.losses), 'loss').replace('losss', 'losses')}: {kinds(run.losses)}",
            *_losses(run),
        ]
    lines += [f"  {harmless(text, 400)}" for text in (*slow(run), *run.errors, *doubts(run))]
    return "\n".join(lines)


def _figures(run: Run, other: Run | None) -> list[str]:
    rows = [
        [f.name, words(f, run), *([words(f, other), ratio(f, run, other)] if other is not None else [])]
        for f in FIGURES
        if f.of(run) or (other is not None and f.of(other))
    ]
    if told := samples(run):
        rows.append(["samples", told, *([samples(other) or "-", ""] if other is not None else [])])
    return _table(rows)


def _losses(run: Run) -> list[str]:
    head = ["at", "group", "what", "knew", "others go on", "back", "stood", "dropped/redone/without"]
    rows = [head, *([*_loss(loss, run)] for loss in run.losses[:_MOST])]
    rest = len(run.losses) - _MOST
    return _table(rows) + ([f"  and {rest} more (--json has all)"] if rest > 0 else [])


def _loss(loss: Loss, run: Run) -> list[str]:
    at = dict(loss.phases)
    return [
        clock(loss.t - run.began),
        harmless(loss.group, 16) if loss.group else "lighthouse",
        what(loss, 46),
        *(seconds(at[name]) if name in at else "-" for name in ("detected", "committed", "back")),
        seconds(loss.stood),
        f"{loss.dropped}/{loss.redone}/{loss.without}",
    ]


def what(loss: Loss, most: int) -> str:
    """Describe a loss's cause and effect in at most `most` characters."""
    cause = ""
    if loss.by is not None:
        took = f" for {seconds(loss.by.duration)}" if loss.by.duration else ""
        cause = f"chaos: {loss.by.kind}{took}"
    if loss.kind == "nothing":
        return harmless(f"{cause}; nobody was lost", most)
    if loss.group:
        effect = f"{loss.kind} ({loss.reason})" if loss.reason else loss.kind
    else:
        effect = loss.reason.removeprefix("the lighthouse ") or "started again"
    return harmless(f"{cause} -> {effect}" if cause else effect, most)


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))] if rows else []
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
