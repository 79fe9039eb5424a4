"""What whoever keeps a job's supervisors running writes down for its lighthouse: the text of a file, and back. Pure.

The file is replaced as a whole whenever something changes, so its newest content is all that counts.
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
    """Raises `ConfigError` for what `render` hasn't made."""
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
