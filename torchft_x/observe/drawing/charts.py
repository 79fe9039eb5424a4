"""Charts of the loss curve, of the step times, and of the phases of a member's loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchft_x.observe.drawing.shapes import Sheet, clock, decades, moments, seconds, thinned, ticks
from torchft_x.observe.run.values import Loss, Point, Run, StepTimes

WIDTH, HEIGHT = 535.0, 240.0
LEFT, TOP, RIGHT, BOTTOM = 56.0, 30.0, 16.0, 34.0
_POINTS = 700  # points of a curve, about


def loss_curve(runs: Sequence[Run], by: str) -> Sheet:
    """Draw the loss curve of one run or two; `by`: ``step`` or ``time``."""
    sheet = Sheet(WIDTH, HEIGHT, f"Loss by {by}")
    title = "loss by step" if by == "step" else "loss by time since the first event"
    sheet.text(LEFT, 18, title + ("; thin: the other run" if len(runs) > 1 else ""))
    lines = [[(_at(p, run, by), p.loss) for p in run.curve] for run in runs]
    every = [point for line in lines for point in line]
    if not every:
        sheet.text(LEFT, HEIGHT / 2, "no script told it (Manager.log)")
        return sheet
    low, high = min(y for _, y in every), max(y for _, y in every)
    high = high if high > low else low + 1.0
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    right = right if right > left else left + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * (x - left) / (right - left),
            TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low),
        )

    for value in ticks(low, high, 5):
        _, y = place(left, value)
        sheet.line(LEFT, y, WIDTH - RIGHT, y, "grid")
        sheet.text(LEFT - 8, y + 4, f"{value:.4g}", anchor="end")
    for value in ticks(left, right, 6) if by == "step" else moments(right, 6):
        x, _ = place(value, low)
        if x >= LEFT:
            words = (
                f"{value:,.0f}" if by == "step" else seconds(value) if right < 60 else clock(value).removesuffix(".0")
            )
            sheet.text(x, HEIGHT - 14, words, anchor="middle")
    for line, kind in reversed(list(zip(lines, ("curve", "other"), strict=False))):
        if line:
            sheet.path([place(*point) for point in thinned(sorted(line), _POINTS)], kind)
    return sheet


def _at(point: Point, run: Run, by: str) -> float:
    return point.step if by == "step" else point.t - run.began


def histogram(times: StepTimes) -> Sheet:
    """Draw the number of steps by their time, on a logarithmic axis."""
    sheet = Sheet(WIDTH, HEIGHT, "Times of steps")
    sheet.text(
        LEFT,
        18,
        f"time of a step: median {seconds(times.median)}, 95 % {seconds(times.p95)}, 99 % {seconds(times.p99)}, "
        f"longest {seconds(times.longest)}",
    )
    plot, bottom, highest = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM, max(times.bars)
    width = plot / len(times.bars)
    for value in ticks(0, highest, 4):
        y = bottom - (bottom - TOP) * value / highest
        sheet.line(LEFT, y, WIDTH - RIGHT, y, "grid")
        sheet.text(LEFT - 8, y + 4, f"{value:,.0f}", anchor="end")
    for k, number in enumerate(times.bars):
        if number:
            height = max(1.0, (bottom - TOP) * number / highest)
            title = f"{number} of {seconds(times.edges[k])} to {seconds(times.edges[k + 1])}"
            sheet.box(LEFT + width * k + 0.5, bottom - height, width - 1, height, "bar", title)
    low, high = times.edges[0], times.edges[-1]
    scale = _log_scale(low, high, LEFT, plot)
    for value in _log_ticks(low, high):
        sheet.text(scale(value), HEIGHT - 14, seconds(value), anchor="middle")
    sheet.line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    return sheet


def _log_ticks(low: float, high: float) -> list[float]:
    """Return a logarithmic axis's marks: 1, 2 and 5 times powers of ten; on a long axis powers of ten only."""
    found = [x * k for x in decades(low / 10, high) for k in (1, 2, 5) if low <= x * k <= high]
    return found if high / low < 200 and len(found) > 1 else (decades(low, high) or [low, high])


def _log_scale(low: float, high: float, left: float, width: float) -> Callable[[float], float]:
    def place(value: float) -> float:
        return left + width * min(1.0, max(0.0, math.log(max(value, low) / low) / math.log(high / low)))

    return place


BAR, BAR_HEIGHT = 260.0, 18.0
BAR_FROM = 0.01  # seconds at the left edge, where shorter times are drawn, too


def longest(losses: Sequence[Loss]) -> float:
    """Return the seconds at the right edge of all bars."""
    return max([1.0, *(t for loss in losses for _, t in loss.phases)]) * 1.05


def phase_bar(loss: Loss, most: float) -> str:
    """Draw the phases from the fault until the group is back, on a logarithmic axis from 10 ms to `most` seconds."""
    sheet = Sheet(BAR, BAR_HEIGHT, "phases")
    place = _log_scale(BAR_FROM, most, 0.0, BAR)
    x, told = 0.0, []
    for name, t in sorted(loss.phases, key=lambda phase: phase[1]):
        if name not in ("fault", "whole"):
            end = place(max(t, 0.0))
            sheet.box(x, 3, max(end - x, 1.5), BAR_HEIGHT - 6, f"p-{name}")
            told.append(f"{name} after {seconds(max(t, 0.0))}")
            x = max(x, end)
    for value in decades(BAR_FROM * 10, most):
        sheet.line(place(value), 0, place(value), BAR_HEIGHT, "grid")
    sheet.box(0, 0, BAR, BAR_HEIGHT, "clear", "; ".join(told))
    return sheet.svg()


def bar_axis(most: float) -> str:
    """Draw the axis at the head of the bars' column."""
    sheet = Sheet(BAR, BAR_HEIGHT, "seconds, logarithmic")
    place = _log_scale(BAR_FROM, most, 0.0, BAR)
    for value in decades(BAR_FROM * 10, most):
        sheet.text(place(value), 13, seconds(value), anchor="middle")
    return sheet.svg()
