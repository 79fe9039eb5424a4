"""Shows the overview in a terminal and refreshes it each second, with rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from torchft_x.launch.status import lines
from torchft_x.timing import POLL_SLOW

_TONES = {
    "trains": "green", "finished": "green", "heals": "blue", "rehearses": "blue", "starts": "blue", "restarts": "blue",
    "regroups": "blue", "waits": "yellow", "pauses": "yellow", "awaited": "yellow", "drains": "yellow", "lost": "red",
    "failed": "red", "stopped": "red", "silent": "red", "late": "red",
}  # fmt: skip


def picture(status: Mapping[str, Any], height: int) -> Group:
    """Return the overview as far as it fits into the height. If groups must be left out, leave out those that train."""
    groups = lines.rows(status, "groups")
    room = max(5, height - 12)
    if len(groups) > room:
        groups = sorted(groups, key=lambda g: g.get("does") == "trains")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("group", "does", "step", "restarts", ""):
        table.add_column(title, justify="right" if title == "step" else "left", no_wrap=title != "")
    for group in groups[:room]:
        name, does, step, restarts, more = lines.group_cells(group)
        table.add_row(Text(name), Text(does, _TONES.get(does, "dim")), Text(step), Text(restarts), Text(more, "dim"))
    parts: list[RenderableType] = [
        Text(lines.head(status), "bold"),
        Text(lines.totals(status), "dim"),
        *(Text(n, "yellow") for n in lines.notices(status)),
        Text(""),
        table,
    ]
    if len(groups) > room:
        parts.append(Text(f"and {len(groups) - room} more that train", "dim"))
    parts += [Text(loss, "dim") for loss in lines.losses(status)]
    if status.get("page"):
        parts.append(Text(f"Page: {lines.page(status)}", "dim"))
    return Group(*parts)


def watch(poll: Callable[[], Mapping[str, Any]], first: Mapping[str, Any], console: Console | None = None) -> None:
    """Show the overview until the job is over, or `poll` raises."""
    screen = console or Console()
    with Live(picture(first, screen.height), console=screen, auto_refresh=False) as live:
        status = first
        while not isinstance(status.get("verdict"), dict):
            time.sleep(POLL_SLOW)
            status = poll()
            live.update(picture(status, screen.height), refresh=True)
