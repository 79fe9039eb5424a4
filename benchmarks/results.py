"""Conversion of samples to the rows of a result file, and printing of the file as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.bench import Measured
from benchmarks.stats import Goal, Summary, judge, ratios, summarize

Row = dict[str, Any]


def row_of(m: Measured) -> Row:
    """Return a row of the table, with its samples, as JSON holds it."""
    verdict = judge(m.goal, m.ours, m.peer, m.limit, m.why_not)
    return {
        "key": m.key,
        "what": m.what,
        "unit": m.unit,
        "goal": m.goal and _goal(m.goal),
        "ours": _summary(summarize(m.ours)),
        "peer": _summary(summarize(m.peer)),
        "limit": _summary(summarize(m.limit)),
        "limit_is": m.limit_is,
        "ratio": _summary(summarize(ratios(m.ours, m.peer))),
        "to_limit": _summary(summarize(ratios(m.ours, m.limit))),
        "verdict": verdict.word,
        "why": verdict.why,
        "why_no_peer": m.why_no_peer if not m.peer else "",
        "note": m.note,
        "higher_is_better": m.higher_is_better,
        "samples": {"ours": m.ours, "peer": m.peer, "limit": m.limit},
    }


def _goal(goal: Goal) -> Row:
    return {"limit": goal.limit, "of": goal.of, "at_most": goal.at_most, "share": goal.share, "needs": goal.needs}


def _summary(s: Summary | None) -> Row | None:
    """Return the summary as JSON holds it, where "never" is null, since JSON has no infinity."""
    if s is None:
        return None
    numbers = {
        name: None if math.isinf(x) else x for name, x in (("median", s.median), ("low", s.low), ("high", s.high))
    }
    return {**numbers, "n": s.n, "few": s.few}


def write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def all_rows(data: dict[str, Any]) -> list[Row]:
    return [row for one in data["benchmarks"].values() for row in one["rows"]]


def notes(data: dict[str, Any]) -> list[str]:
    """Return the remarks that belong beside the table, without duplicates."""
    out: list[str] = []
    for name, entry in data["benchmarks"].items():
        if entry["quick"]:
            out.append(f"{name}: a smoke run (--quick); its figures say nothing")
        if "failed" in entry:
            out.append(f"{name}: could not be measured: {entry['failed']}")
        for row in entry["rows"]:
            if row["note"]:
                out.append(f"{row['what']}: {row['note']}")
            if row["limit"]:
                out.append(f"{row['what']}: the limit is {row['limit_is']}; ours/limit {figure(row['to_limit'], 'x')}")
            if row["why_no_peer"]:
                out.append(f"{name}: no peer: {row['why_no_peer']}")
    return list(dict.fromkeys(out))


# --- the table -------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """Return the rows as plain text with aligned columns."""
    lines = [["what", "goal", "ours", "peer", "ours/peer", "limit", ""]]
    lines += [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def markdown(data: dict[str, Any]) -> str:
    """Return the table as Markdown, with fewer columns, and with time, commit and load of each benchmark."""
    lines = ["| | goal | ours | peer | limit | |", "|---|---|---|---|---|---|"]
    for what, goal, ours, peer, _, limit, verdict in map(_cells, all_rows(data)):
        lines.append(f"| {what} | {goal} | {ours} | {peer} | {limit} | {verdict.strip('-')} |")
    lines += ["", "| benchmark | when | commit | load before, after |", "|---|---|---|---|"]
    for name, e in data["benchmarks"].items():
        lines.append(f"| {name} | {e['at']} | {e['commit']} | {e['load_before']}, {e['load_after']} |")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    return [
        row["what"],
        goal_words(row),
        figure(row["ours"], row["unit"]) or row["why"] or "-",
        figure(row["peer"], row["unit"]) or ("none" if row["why_no_peer"] else "-"),
        figure(row["ratio"], "x") or "-",
        figure(row["limit"], row["unit"]) or "-",
        _verdict(row),
    ]


def _verdict(row: Row) -> str:
    return row["verdict"] + (f" ({row['why']})" if row["why"] and row["ours"] else "")


def goal_words(row: Row) -> str:
    goal = row["goal"]
    if goal is None:
        return "-"
    sign = "<=" if goal["at_most"] else ">="
    words = {
        "ours": f"{sign} {goal['limit']:g} {row['unit']}",
        "total": f"{sign} {goal['limit']:g} in {goal['needs'] or 'all'}",
        "share": f"{goal['share']:.0%} {sign} {goal['limit']:g} {row['unit']}",
        "peer/ours": f"peer/ours {sign} {goal['limit']:g}",
        "ours/peer": f"ours/peer {sign} {goal['limit']:g}",
        "ours/limit": f"{sign} {goal['limit']:g} x limit",
    }
    return words[goal["of"]]


def figure(summary: Row | None, unit: str) -> str:
    """Return a summary as text: ``0.081 s [0.079, 0.084] n=30``.

    ``never`` stands for an infinite value; ``[low..high]`` is a range of samples too few for an interval.
    """
    if summary is None:
        return ""
    median, low, high = (_number(summary[k]) for k in ("median", "low", "high"))
    spread = f"[{low}..{high}]" if summary["few"] else f"[{low}, {high}]"
    return f"{median} {unit} {spread} n={summary['n']}" if median != "never" else f"never {spread} n={summary['n']}"


def _number(x: float | None) -> str:
    """Return the number with three significant digits, or "never" for None."""
    if x is None:
        return "never"
    if x == 0 or abs(x) >= 100:
        return f"{x:.0f}"
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"
