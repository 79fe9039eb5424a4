"""The summary of a run in a terminal."""

from __future__ import annotations

from torchft_x.observe.console import harmless, plural
from torchft_x.observe.drawing.figures import FIGURES, doubts, kinds, ratio, samples, slow, state, words
from torchft_x.observe.run.values import Loss, Run
from torchft_x.units import clock, seconds

_MOST = 60  # losses that are listed


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
        *(seconds(max(0.0, at[name])) if name in at else "-" for name in ("detected", "committed", "back")),
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
