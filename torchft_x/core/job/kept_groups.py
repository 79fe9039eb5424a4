"""Render and parse the file in which the keeper of a job's supervisors tells the lighthouse of groups. Pure functions.

The keeper replaces the whole file at each change, so only its newest content counts.
"""

from __future__ import annotations

import json
from typing import Any

from torchft_x.core.messages.job import GroupsChanged, SupervisorFinished
from torchft_x.errors import ConfigError


def render(event: GroupsChanged) -> str:
    ended = [[e.group, e.node, e.code, e.sentence] for e in event.ended]
    return json.dumps({"groups": event.groups, "ended": ended})


def parse(text: str) -> GroupsChanged:
    """Return the event that `render` wrote. Raise `ConfigError` for a text that `render` has not made."""
    try:
        found = json.loads(text)
        groups, ended = found["groups"], [_end(*row) for row in found["ended"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError("it holds no list of groups.") from None
    if not isinstance(groups, list) or not groups or not all(isinstance(g, str) and g for g in groups):
        raise ConfigError("it names no groups.")
    if len(set(groups)) != len(groups):
        raise ConfigError("it names a group twice.")
    return GroupsChanged(tuple(groups), tuple(ended))


def _end(group: Any, node: Any, code: Any, sentence: Any) -> SupervisorFinished:
    if not (
        isinstance(group, str) and isinstance(sentence, str) and type(node) is type(code) is int and 0 <= node < 4096
    ):
        raise TypeError
    return SupervisorFinished(group, code, sentence, node)
