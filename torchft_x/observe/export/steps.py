"""A hook for what people use to watch numbers: TensorBoard, Weights & Biases, a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torchft_x.observe.events import subscribe

OnStep = Callable[[int, Mapping[str, float]], object]


def on_step(call: OnStep, *, rank: int = 0) -> Callable[[], None]:
    """Call `call(step, numbers)` after each committed step of this process, and return what ends that.

    `step`: committed steps so far. `numbers`: ``step_seconds`` and ``reduce_seconds``, ``groups`` that contributed, ``bytes``
    that were reduced, ``dropped`` (steps, so far), ``losses`` (other groups that were lost, so far), after a heal
    ``heal_seconds``, and what the script gave to `Manager.log` since the last step. What has no value is missing.

    For the Manager of this group rank only: of several ranks of a group, and of several Managers in a process, it is the one
    that speaks. It runs on the training thread, between two steps, so it must be quick; what it raises is a warning.
    """
    return subscribe(_Steps(call, rank).hear)


class _Steps:
    def __init__(self, call: OnStep, rank: int) -> None:
        self._call = call
        self._rank = rank
        self._dropped = 0
        self._lost = 0
        self._given: dict[str, float] = {}  # until the next commit

    def hear(self, event: dict[str, Any]) -> None:
        if event.get("rank", 0) != self._rank:
            return
        name = event["event"]
        if name == "commit":
            self._commit(event)
        elif name == "drop":
            self._dropped += 1
        elif name == "member_lost" and not event.get("left"):
            self._lost += 1
        elif name == "heal_end":
            self._given["heal_seconds"] = event["duration"]
        elif name == "metrics":
            self._given |= {k: v for k, v in event.items() if k not in _NO_NUMBERS and isinstance(v, (int, float))}

    def _commit(self, event: dict[str, Any]) -> None:
        named = {"step_seconds": "duration", "reduce_seconds": "reduction", "groups": "participants", "bytes": "bytes"}
        numbers = {name: event[field] for name, field in named.items() if event.get(field) is not None}
        given, self._given = self._given, {}
        numbers |= {"dropped": self._dropped, "losses": self._lost, **given}
        try:
            self._call(event["step"] + 1, numbers)
        except Exception as e:
            warnings.warn(f"on_step: {e!r}", RuntimeWarning, stacklevel=2)


_NO_NUMBERS = frozenset(["t", "mono", "pid", "rank", "attempt", "step"])
