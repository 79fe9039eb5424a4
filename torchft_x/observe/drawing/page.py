"""The data that `observe/page.html` draws of a run, and all its sentences. Times count from the run's start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torchft_x._version import __version__
from torchft_x.observe import template
from torchft_x.observe.console import plural
from torchft_x.observe.drawing.figures import (
    FIGURES,
    doubts,
    kinds,
    lost,
    ratio,
    samples,
    slow,
    state,
    usual,
    what,
    words,
)
from torchft_x.observe.run.values import Loss, Run, Span
from torchft_x.units import amount, clock, seconds

Json = dict[str, Any]

MOST_LOSSES = 400  # rows and marks, for the most expensive losses
MOST_GROUPS = 100  # rows, for the first groups
_MOST_SPANS = 4000  # so that the file stays small
_PIXELS = 960.0  # width of the timeline, about
_POINTS = 700  # points of a curve, about
_LOSS_NOTE = (
    "Seconds count from the fault, on a logarithmic axis. stood: seconds without a commit beyond a usual step. steps: "
    "dropped / reduced again / committed without it / thrown away."
)


def page(run: Run, now: float, other: Run | None = None) -> str:
    """Return a run as an HTML page. `now`: unix seconds; `other`: a run to compare with."""
    return template.report(
        {
            "title": _name(run),
            "sentences": [
                state(run, now),
                *slow(run),
                *doubts(run),
                *([f"Samples: {samples(run)}."] if run.samples else []),
            ],
            "figures": _tiles(run),
            "sections": [section for section in _sections(run, other) if len(section) > 1],
            "about": f"torchft_x {__version__}; {run.events:,} events of {run.run_dir}",
        }
    )


def _sections(run: Run, other: Run | None) -> Iterable[Json]:
    if other is not None:
        rows = [[f.name, words(f, run), words(f, other), ratio(f, run, other)] for f in FIGURES]
        yield {
            "title": f"Against {_name(other)}",
            "head": ["figure", "this run", _name(other), "this / that"],
            "rows": rows,
        }
    shown = dearest(run.losses, MOST_LOSSES)
    rest = len(run.groups) - MOST_GROUPS
    yield {
        "title": "What happened when",
        "timeline": _timeline(run, shown),
        "notes": [f"{plural(rest, 'more group')} not drawn."] if rest > 0 else [],
    }
    yield _losses(run, shown)
    yield _goodput(run)
    yield _charts([run] if other is None else [run, other])
    yield {"title": "What failed besides", **_sentences(run.errors)}
    yield {
        "title": "New lineages",
        **_sentences([f"{x.reason}: {plural(x.steps, 'step')}" for x in run.lineages[:50]]),
    }


def _sentences(known: Sequence[str]) -> Json:
    return {"sentences": known} if known else {}


def _name(run: Run) -> str:
    return os.path.basename(os.path.normpath(run.run_dir))


def _tiles(run: Run) -> list[tuple[str, str]]:
    trained = run.trained[1] - run.trained[0] if run.trained else 0.0
    return [
        (f"{run.steps:,}", "steps committed"),
        (f"{100 * run.goodput.share:.1f} %" if run.goodput else "-", "goodput"),
        (str(len(lost(run))), "losses of groups"),
        (seconds(usual(lost(run), "committed")), "until the others' next commit"),
        (seconds(usual(lost(run), "back")), "until the group was back"),
        (clock(trained), "of training"),
        (str(len(run.groups)), "groups"),
    ]


def _timeline(run: Run, shown: Sequence[Loss]) -> Json:
    length = max(run.ended - run.began, 1e-3)
    pixel = length / _PIXELS  # seconds
    spans = [visible(g.spans, pixel) for g in run.groups[:MOST_GROUPS]]
    while sum(map(len, spans)) > _MOST_SPANS:
        pixel *= 2
        spans = [visible(of_group, pixel) for of_group in spans]
    rows: list[Json] = [{"name": "lighthouse", "spans": [(0, length, "serving")], "marks": _marks(run, shown, "")}]
    for group, of_group in zip(run.groups, spans, strict=False):
        drawn = [(_since(run, span.begin), _since(run, span.end), span.what) for span in of_group]
        rows.append({"name": group.name, "spans": drawn, "marks": _marks(run, shown, group.name)})
    return {"begin": 0, "end": length, "rows": rows, "bands": [_contributors(run, pixel), _rate(run)]}


def _since(run: Run, t: float) -> float:
    return round(t - run.began, 3)


def _marks(run: Run, losses: Iterable[Loss], group: str) -> list[tuple[float, str, str]]:
    return [
        (
            _since(run, loss.t),
            "fault" if loss.by is not None or loss.kind not in ("left", "left out") else "mild",
            f"{clock(loss.t - run.began)}: {f'{loss.by.kind} by chaos' if loss.by else loss.kind}. {loss.reason}",
        )
        for loss in losses
        if loss.group == group
    ]


def _contributors(run: Run, pixel: float) -> Json:
    points: list[tuple[float, int]] = []
    end = 0.0
    for q in run.quorums:
        until = q.until if q.until is not None else max(q.t, run.trained[1] if run.trained else run.ended)
        if until - run.began - end > 0.4 * pixel or q.until is None:  # shorter ones are invisible
            points.append((_since(run, q.t), q.contributors))
            end = _since(run, until)
    return {
        "kind": "stairs",
        "words": "groups that contribute to a step (each quorum is a stair)",
        "points": points,
        "end": end,
        "high": max((q.contributors for q in run.quorums), default=1) or 1,
    }


def _rate(run: Run) -> Json:
    full = run.goodput.groups / run.goodput.usual if run.goodput is not None else 0.0
    begin, end = (_since(run, t) for t in run.trained or (run.began, run.began))
    width = (end - begin) / max(len(run.rate), 1)
    most = sorted(run.rate)[int(0.98 * (len(run.rate) - 1))] if run.rate else 0.0
    return {
        "kind": "rate",
        "words": "batches committed a second; dashed: what all groups make when nothing happens",
        "points": [(round(begin + width * k, 3), round(value, 4)) for k, value in enumerate(run.rate)],
        "end": end,
        "high": max(most, full) * 1.15 or 1.0,
        "usual": full,
        "says": f"{full:.3g}/s" if full else " ",
    }


def _losses(run: Run, shown: Sequence[Loss]) -> Json:
    if not run.losses:
        return {"title": "Losses", "sentences": ["Nobody was lost."]}
    rest = len(run.losses) - len(shown)
    rows = [
        {
            "at": clock(loss.t - run.began),
            "group": loss.group or "lighthouse",
            "what": what(loss, 160),
            "phases": {name: round(t, 5) for name, t in loss.phases},
            "stood": round(loss.stood, 5),
            "steps": f"{loss.dropped}/{loss.redone}/{loss.without}/{loss.thrown}",
        }
        for loss in shown
    ]
    more = [f"The {len(shown)} that cost most; {rest} more are in --json."] if rest else []
    return {"title": f"Losses: {kinds(run.losses)}", "losses": rows, "notes": [*more, _LOSS_NOTE]}


def _goodput(run: Run) -> Json:
    g = run.goodput
    if g is None:
        return {"title": "Goodput", "sentences": ["Too few steps were committed to tell."]}
    other = max(0.0, g.could - g.batches - g.missing)
    sentence = (
        f"{g.batches:,} batches were committed. {plural(g.groups, 'group')} that all train all the time, with a step each "
        f"{seconds(g.usual)}, could have made {g.could:,.0f}. {g.missing:,} of those that are missing are of groups that "
        f"were away while the others went on, {other:,.0f} of times without a step, or of steps that took longer."
    )
    return {"title": f"Goodput: {100 * g.share:.1f} %", "sentences": [sentence]}


def _charts(runs: Sequence[Run]) -> Json:
    run = runs[0]
    charts: list[Json] = []
    notes = []
    if any(r.curve for r in runs):
        thin = "; thin: the other run" if len(runs) > 1 else ""
        for by, title in (("step", "loss by step"), ("time", "loss by time since the first event")):
            charts.append({"by": by, "words": title + thin, "lines": [_curve(r, by) for r in runs]})
    else:
        notes.append("No script told its loss (Manager.log).")
    if (times := run.step_times) is not None:
        charts.append(
            {
                "by": "log",
                "words": f"time of a step: median {seconds(times.median)}, 95 % {seconds(times.p95)}, 99 % "
                f"{seconds(times.p99)}, longest {seconds(times.longest)}",
                "bars": list(zip(times.edges, times.edges[1:], times.bars, strict=False)),
            }
        )
    c = run.checkpoints
    if c.number:
        took = f"{amount(c.bytes)} in {seconds(c.seconds)} beside the training"
        notes.append(f"{plural(c.number, 'checkpoint')}, the newest of step {c.step}: {took}.")
    return {
        "title": "Steps and groups",
        "charts": charts,
        "head": ["group", "workers", "attempts", "commits", "sent in reductions"],
        "rows": [
            [g.name, str(g.workers), str(len(g.attempts)), f"{g.commits:,}", amount(g.bytes)]
            for g in run.groups[:MOST_GROUPS]
        ],
        "notes": notes,
    }


def _curve(run: Run, by: str) -> list[tuple[float, float]]:
    """Return every nth point, and the last one."""
    points = sorted((p.step if by == "step" else _since(run, p.t), p.loss) for p in run.curve)
    every = -(-len(points) // _POINTS) or 1
    return [*points[::every], *(points[-1:] if (len(points) - 1) % every else [])]


def dearest(losses: Sequence[Loss], most: int) -> Sequence[Loss]:
    """Return the at most `most` losses that delayed the job longest, in their order."""
    if len(losses) <= most:
        return losses
    chosen = {id(loss) for loss in sorted(losses, key=lambda loss: -loss.stood)[:most]}
    return [loss for loss in losses if id(loss) in chosen]


def visible(spans: Iterable[Span], pixel: float) -> list[Span]:
    """Merge spans of one kind less than half a pixel apart, drop others shorter than that. `pixel`: seconds."""
    shown: list[Span] = []
    for span in spans:
        last = shown[-1] if shown else None
        if last is not None and last.what == span.what and span.begin - last.end < pixel / 2:
            shown[-1] = Span(begin=last.begin, end=max(last.end, span.end), what=span.what)
        elif last is not None and span.end - last.begin < pixel / 2:
            continue
        else:
            shown.append(span)
    return shown
