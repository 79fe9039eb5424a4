"""Formats a lighthouse's overview as lines of text. Pure. All text of a lighthouse is made harmless for terminals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from torchft_x import net

LATELY = 5
"""Number of losses that are shown."""

_PHASES = (
    ("released", "others released"),
    ("regrouped", "next quorum"),
    ("committed", "goes on"),
    ("restarted", "restarted"),
    ("rejoined", "rejoined"),
    ("healed", "healed"),
    ("back", "commits again"),
    ("whole", "whole"),
)
"""Phases of a loss in their order in time, each with its label."""


def plain(value: object) -> str:
    """Return the value as one line without control characters."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def seconds(value: object) -> str:
    s = number(value)
    if s < 1:
        return f"{s * 1000:.0f} ms"
    if s < 90:
        return f"{s:.1f} s" if s < 10 else f"{s:.0f} s"
    return f"{s / 60:.0f} min" if s < 5400 else f"{s / 3600:.1f} h"


def number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def head(status: Mapping[str, Any]) -> str:
    """Return one line with the job's state."""
    groups, quorum, rate = rows(status, "groups"), status.get("quorum"), number(status.get("step_rate"))
    trains = sum(g.get("does") == "trains" for g in groups)
    parts = [f"{plain(status.get('state', '?'))} at step {number(status.get('step')):,.0f}"]
    if rate > 0:
        parts.append(f"{rate:.1f} steps a second" if rate >= 1 else f"{seconds(1 / rate)} a step")
    parts.append(f"{trains} of {len(groups)} groups train")
    if isinstance(quorum, dict):
        parts.append(f"quorum q{number(quorum.get('number')):.0f} is {seconds(quorum.get('age'))} old")
    return ", ".join(parts)


def totals(status: Mapping[str, Any]) -> str:
    """Return one line with counts and durations, or '' if they are unknown."""
    counts, durations = status.get("counts"), status.get("durations")
    if not isinstance(counts, dict) or not isinstance(durations, dict) or not number(counts.get("commits")):
        return ""
    parts = [f"{number(counts['commits']):,.0f} commits of groups"]
    if number(counts.get("dropped_steps")):
        parts.append(f"{number(counts['dropped_steps']):,.0f} dropped")
    for name, words in (("step", "a step takes"), ("reduction", "reducing"), ("heal", "a heal")):
        known = durations.get(name)
        if isinstance(known, dict) and known.get("mean") is not None:
            parts.append(f"{words} {seconds(known['mean'])}")
    return ", ".join(parts)


def notices(status: Mapping[str, Any]) -> list[str]:
    """Return the verdict, the reason for a wait that lasts, and what became of a lighthouse that is away."""
    out = [plain(status["away"])] if status.get("away") else []
    verdict, waiting = status.get("verdict"), status.get("waiting")
    if isinstance(verdict, dict):
        out.append(plain(verdict.get("sentence", "")))
    if isinstance(waiting, dict) and (number(waiting.get("since")) > 1 or status.get("quorum") is None):
        members = number(waiting.get("members"))
        out.append(
            f"{members:.0f} {'group has' if members == 1 else 'groups have'} waited for {seconds(waiting.get('since'))}: "
            f"{plain(waiting.get('reason', ''))}"
        )
    return out


def group_cells(group: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Return the cells of a group's row: name, activity, step, restarts, details with the host."""
    step = group.get("step")
    restarts = number(group.get("restarts"))
    return (
        plain(group.get("group", "?")),
        plain(group.get("does", "?")),
        "" if step is None else f"{number(step):,.0f}",
        f"{restarts:.0f}" if restarts else "",
        " ".join(
            filter(None, [plain(group.get("more", "")), f"(on {plain(group['host'])})" if group.get("host") else ""])
        ),
    )


def losses(status: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the newest losses, with its costs."""
    out = []
    for loss in rows(status, "losses")[-LATELY:]:
        costs = [plain(loss.get("exit") or ""), f"at step {number(loss.get('step')):,.0f}"]
        if loss.get("stood") is not None:
            costs.append(f"no commit for {seconds(loss['stood'])}")
        costs += [f"{words} {seconds(loss[name])}" for name, words in _PHASES if loss.get(name) is not None]
        when = time.strftime("%H:%M:%S", time.localtime(number(loss.get("t"))))
        out.append(f"{when} {plain(loss.get('reason', ''))} ({'; '.join(filter(None, costs))})")
    return out


def text(status: Mapping[str, Any]) -> list[str]:
    """Return the whole overview as lines."""
    lines = [line for line in (head(status), totals(status), *notices(status)) if line]
    cells = [("group", "does", "step", "restarts", ""), *map(group_cells, rows(status, "groups"))]
    wide = [max(len(row[i]) for row in cells) for i in range(4)]
    if len(cells) > 1:
        lines.append("")
        lines += ["  ".join([*(c.ljust(w) for c, w in zip(row, wide, strict=False)), row[4]]).rstrip() for row in cells]
    lost = losses(status)
    if lost:
        lines += ["", "Losses:", *lost]
    if status.get("page"):
        lines += ["", f"Page: {page(status)}"]
    return lines


def page(status: Mapping[str, Any]) -> str:
    """Return the page's address, with an ssh command if it is the loopback of another host."""
    found = plain(status["page"])
    there, host = urlsplit(found), urlsplit(str(status.get("address", ""))).hostname or ""
    if there.hostname not in ("127.0.0.1", "localhost", "::1") or not host or net.is_own_address(host):
        return found
    return f"{found} on {plain(host)}; from here: ssh -L {there.port}:127.0.0.1:{there.port} {plain(host)}"


def ended(event: Mapping[str, Any]) -> str:
    """Return a clause about the end of a run, from the lighthouse's last event."""
    when = time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(number(event["t"]))) if "t" in event else ""
    code, reason = event.get("code"), plain(event.get("reason", "")).rstrip(".")
    how = "finished" if code == 0 else f"failed with code {plain(code)}"
    return f"{how}{when}{': ' + reason if reason else ''}."


def rows(status: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = status.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
