"""Extraction of events from collected logs, in which processes have printed them among other lines (TORCHFT_X_EVENTS).

A collector may put words before a line, or the line into a JSON object of its own.
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
)  # collectors' names for the field with the collected line
_LONGEST = 1 << 20  # characters of a line; longer ones are ignored
_WHO = ("role", "group", "node", "rank", "pid")


def events_in(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events in the lines, in their order. Other content is ignored."""
    decode = json.JSONDecoder().raw_decode
    for line in lines:
        text = line if len(line) <= _LONGEST else ""
        for _ in range(2):  # the second pass reads a line inside an object
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
    """Write events into a run directory as the processes would have, and return their number. Raises OSError.

    Each event comes with its source, as process ids are unique within one only. A repeated event counts once.
    """
    logs: dict[str, dict[str, float]] = {}  # times by line, by file
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
