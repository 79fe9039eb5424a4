"""Two pictures of a result file: every row against its goal, and the goodput over time with the kills."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.results import Row, all_rows, figure, goal_words
from benchmarks.svg import Sheet

OURS, PEER, LIMIT, GOAL, GRID, KILL = "#1b6ec2", "#e07b39", "#7a7a7a", "#2a9d4b", "#e4e4e4", "#c0392b"
LEFT, RIGHT, TOP, ROW = 470, 330, 80, 24
PLOT = 520  # width of the plot
DECADES = 8  # bound of the axis, so that a far outlier doesn't squeeze the rest


def draw_all(data: dict[str, Any], out: Path) -> list[Path]:
    """Draw the pictures beside the result file `out`, and return their paths."""
    drawn = []
    rows = [r for r in all_rows(data) if r["ours"] and is_drawn(r)]
    if rows:
        drawn.append(out.with_suffix(".svg"))
        draw_rows(rows, data).write(drawn[-1])
    timelines = [t for one in data["benchmarks"].values() for t in one.get("timelines", [])]
    if timelines:
        drawn.append(out.with_name(out.stem + "-goodput.svg"))
        draw_goodput(timelines).write(drawn[-1])
    return drawn


# --- every row -------------------------------------------------------------------------------------------------------


def is_drawn(row: Row) -> bool:
    """Return whether the row fits a logarithmic axis.

    Counts don't, and the samples behind a total or a share are drawn as a row of their own.
    """
    counts = row["unit"] == "batches" or (row["goal"] and row["goal"]["of"] in ("total", "share"))
    return not counts and scale_of(row) is not None


def scale_of(row: Row) -> float | None:
    """Return the value that is drawn at 1: the goal, else the peer's or the limit's median; None without any."""
    goal = row["goal"]
    candidates = []
    if goal is not None:
        if goal["of"] == "ours":
            candidates.append(goal["limit"])
        elif goal["of"] == "peer/ours" and row["peer"]:
            candidates.append(row["peer"]["median"] and row["peer"]["median"] / goal["limit"])
        elif goal["of"] == "ours/limit" and row["limit"]:
            candidates.append(row["limit"]["median"] and row["limit"]["median"] * goal["limit"])
    candidates += [x["median"] for x in (row["peer"], row["limit"]) if x]
    return next((x for x in candidates if x), None)


def place(value: float | None, row: Row) -> float:
    """Return log10 of value/scale, where larger is worse; "never" (None) is infinite and is drawn at the edge."""
    if value is None:
        return math.inf
    scale = scale_of(row)
    assert scale
    if row["higher_is_better"]:
        return -math.log10(value / scale) if value > 0 else math.inf
    return math.log10(value / scale) if value > 0 else -math.inf


def draw_rows(rows: list[Row], data: dict[str, Any]) -> Sheet:
    places = [
        place(summary["median"], row) for row in rows for summary in (row["ours"], row["peer"], row["limit"]) if summary
    ]
    finite = [x for x in places if math.isfinite(x)] or [0.0]
    low = max(math.floor(min(*finite, -0.5)), -DECADES / 2)
    high = min(math.ceil(max(*finite, 0.5)), DECADES / 2)

    def x_of(p: float) -> float:
        return LEFT + PLOT * (min(max(p, low), high) - low) / (high - low)

    sheet = Sheet(LEFT + PLOT + RIGHT, TOP + ROW * len(rows) + 50)
    machine = data["machine"]
    sheet.text(12, 24, "torchft_x and torchft-nightly, each row against its goal (without one: against the peer)", 16)
    sheet.text(
        12, 44, f"{machine['cpu']}, {machine['cores']} cores; {data['began']}; load {data['load_before']}", 11, LIMIT
    )
    for i, (color, words) in enumerate([(OURS, "torchft_x"), (PEER, "torchft-nightly"), (LIMIT, "limit, control")]):
        sheet.dot(LEFT + 130 * i, 52, color)
        sheet.text(LEFT + 130 * i + 9, 56, words, 11)
    sheet.line(LEFT + 400, 46, LEFT + 400, 58, GOAL, 2)
    sheet.text(LEFT + 407, 56, "goal", 11)
    bottom = TOP + ROW * len(rows)
    for decade in range(math.ceil(low), math.floor(high) + 1):
        x = x_of(decade)
        sheet.line(x, TOP - 8, x, bottom, GRID)
        words = "1" if decade == 0 else f"x {10.0**decade:g}"
        sheet.text(x, bottom + 16, words, 10, LIMIT, "middle")
    sheet.text(LEFT, bottom + 34, "<- better", 11, LIMIT)
    sheet.text(LEFT + PLOT, bottom + 34, "worse ->", 11, LIMIT, "end")
    for i, row in enumerate(rows):
        _draw_row(sheet, row, TOP + ROW * i + ROW / 2, x_of)
    return sheet


def _draw_row(sheet: Sheet, row: Row, y: float, x_of: Any) -> None:
    sheet.line(12, y + ROW / 2, LEFT + PLOT + RIGHT - 12, y + ROW / 2, "#f3f3f3")
    met = {"met": GOAL, "not met": KILL}.get(row["verdict"], "#222")
    sheet.text(12, y + 4, row["what"], 11, met)
    if row["goal"] is not None:
        sheet.line(x_of(0.0), y - 8, x_of(0.0), y + 8, GOAL, 2)
    for name, color, shift in (("limit", LIMIT, 0), ("peer", PEER, 3), ("ours", OURS, -3)):
        summary = row[name]
        if summary:
            ends = [x_of(place(summary[k], row)) for k in ("low", "high")]
            sheet.line(ends[0], y + shift, ends[1], y + shift, color, 2)
            sheet.dot(x_of(place(summary["median"], row)), y + shift, color)
    words = figure(row["ours"], row["unit"]).split(" [")[0]
    if row["peer"]:
        words += "  |  " + figure(row["peer"], row["unit"]).split(" [")[0]
    sheet.text(LEFT + PLOT + 14, y + 4, f"{words}  |  {goal_words(row)}", 10.5)


# --- goodput ---------------------------------------------------------------------------------------------------------


def draw_goodput(timelines: list[dict[str, Any]]) -> Sheet:
    """Draw the committed batches per second in the first run of each library, and the kills."""
    panels = [(t["mtbf"], key, t[key]) for t in timelines for key in ("ours", "peer") if key in t]
    height, left, width = 110, 70, 900
    sheet = Sheet(left + width + 30, 50 + len(panels) * (height + 40))
    sheet.text(12, 24, "Batches committed a second by 4 groups under kill -9 (red), against what they can (dashed)", 15)
    for i, (mtbf, key, line) in enumerate(panels):
        top = 60 + i * (height + 40)
        _draw_panel(sheet, line, (left, top, width, height), OURS if key == "ours" else PEER)
        name = "torchft_x" if key == "ours" else "torchft-nightly"
        sheet.text(left, top - 6, f"{name}, a kill each {mtbf:g} s on average, {len(line['kills'])} kills", 12)
    return sheet


def _draw_panel(sheet: Sheet, line: dict[str, Any], place: tuple[float, float, float, float], color: str) -> None:
    left, top, width, height = place
    rate, full = line["rate"], line["full"]
    highest = 1.1 * max([*rate, full, 1e-9])
    seconds = max(1, len(rate))
    bottom = top + height
    steps = [
        (left + width * (s + d) / seconds, bottom - height * v / highest) for s, v in enumerate(rate) for d in (0, 1)
    ]
    sheet.area([(left, bottom), *steps, (left + width * len(rate) / seconds, bottom)], color)
    y = bottom - height * full / highest
    sheet.line(left, y, left + width, y, LIMIT, 1, dash="5 4")
    sheet.text(left - 8, y + 4, f"{full:.0f}/s", 10, LIMIT, "end")
    sheet.line(left, bottom, left + width, bottom, LIMIT)
    for t in line["kills"]:
        x = left + width * t / seconds
        sheet.line(x, top, x, bottom, KILL, 1.5)
    for s in range(0, seconds + 1, 10):
        sheet.text(left + width * s / seconds, bottom + 14, f"{s} s", 10, LIMIT, "middle")
