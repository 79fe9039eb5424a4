"""Events out of collected logs: lines in which a process has said its events (TORCHFT_X_EVENTS), among all that was printed.

A collector may put words before a line, or the line into an object of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torchft_x.observe.events import BEGIN, EVENTS, is_event

Event = dict[str, Any]

_LINE = (
    "log",
    "message",
    "MESSAGE",
    "msg",
    "line",
    "textPayload",
)  # what collectors call the line that they have collected
_LONGEST = 1 << 20  # characters of a line
_WHO = ("role", "group", "node", "rank", "pid")


def events_in(lines: Iterable[str]) -> Iterator[Event]:
    """In the order in which they come; whatever else is there is left out."""
    decode = json.JSONDecoder().raw_decode
    for line in lines:
        text = line if len(line) <= _LONGEST else ""
        for _ in range(2):  # once more for a line inside of an object
            found = _object(decode, text)
            if is_event(found) and found.get("event") in EVENTS:
                yield found
                break
            text = next((found[name] for name in _LINE if isinstance(found.get(name), str)), "")


def _object(decode: Any, text: str) -> dict[str, Any]:
    at = text.find(BEGIN)
    at = text.find("{") if at < 0 or text.lstrip().startswith("{") else at
    try:
        found = decode(text, at)[0] if at >= 0 else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def write_run(events: Iterable[tuple[str, Event]], run_dir: Path) -> int:
    """As the processes would have written them into their run directory; how many there were. `events`: with where each comes
    from, as process ids are known there alone. The same event twice is one. Raises OSError.
    """
    logs: dict[str, dict[str, float]] = {}  # lines with their times, by file
    for source, event in events:
        who = "-".join(str(event[name]) for name in _WHO if event.get(name) is not None)
        line = json.dumps(event, separators=(",", ":"))
        logs.setdefault(f"{who}-{source}".replace("/", "_").replace("\0", "_")[:200], {})[line] = float(event["t"])
    folder = run_dir / "events"
    folder.mkdir(parents=True)
    for name, lines in logs.items():
        text = "".join(f"{line}\n" for line in sorted(lines, key=lines.__getitem__))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return sum(map(len, logs.values()))
