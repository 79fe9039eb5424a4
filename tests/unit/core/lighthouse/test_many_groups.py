"""As many groups as a large job has, at one lighthouse."""

from __future__ import annotations

import sys
from typing import Any

from tests.unit.core.scene import Scene, issued
from torchft_x.core.types import JoinReason


def lines_per_group(groups: int) -> tuple[list[str], float]:
    """Let `groups` join, one of them die, and the others join again. Return the last quorum, and lines run per group."""
    lines = 0

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if "torchft_x/core/" in frame.f_code.co_filename else None

    s = Scene()
    names = [f"g{n:04d}:1" for n in range(groups)]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        s.start(*names)
        s.exited(names[0])
        effects = s.join(names[1], reason=JoinReason.FAILED, suspects=(names[0],))
        for name in names[2:]:
            effects = s.join(name, reason=JoinReason.FAILED)
    finally:
        sys.settrace(before)
    (members,) = issued(effects)
    return members, lines / groups


def test_work_per_group_does_not_grow_with_the_number_of_groups() -> None:
    """Join, quorum, one death, next quorum: 512 groups run no more lines per group than 64 do."""
    _, few = lines_per_group(64)
    members, many = lines_per_group(512)
    assert len(members) == 511
    assert many <= 1.1 * few
