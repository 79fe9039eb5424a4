"""What outlives all workers at once: the copies in the memory of their supervisors (decision 51; M1, M2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim import swarm
from tests.sim.invariants import Violation
from tests.sim.quorum_checks import QuorumChecks
from torchft_x.core.quorum import rule
from torchft_x.core.training.memory_checkpoint import GroupWord, HeldCopies
from torchft_x.core.types import State


def _restores_never(self: HeldCopies, words: Any, *, due: bool, commit: bool) -> GroupWord:
    return GroupWord(commit and due and all(w.idle for w in words), all(w.holds for w in words))


def _copies_at_any_time(self: HeldCopies, words: Any, *, due: bool, commit: bool) -> GroupWord:
    torn = not commit and self.common is not None and any(w.torn for w in words)
    return GroupWord(commit and due, all(w.holds for w in words), torn)


def _over_the_older(self: HeldCopies, slots: Any) -> int:
    return min(range(2), key=lambda i: slots[i] or State())


@pytest.mark.parametrize(
    ("method", "wrong", "finds", "first"),
    [
        ("decide", _restores_never, "M1", 910_200),
        ("decide", _copies_at_any_time, "M2", 910_000),
        ("slot", _over_the_older, "M2", 910_000),
    ],
)
def test_a_rule_that_is_left_out_is_found(
    method: str, wrong: Any, finds: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within some random runs; with the rule the run that finds it goes well. The rule of decision 61 would hide the first."""
    monkeypatch.setattr(swarm, "MEMORY", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(HeldCopies, method, wrong)
        if finds == "M1":
            patch.setattr(rule, "_held_elsewhere", lambda s, chosen: None)
            patch.setattr(QuorumChecks, "_check_left_behind", lambda self, node, quorum: None)
        with pytest.raises(Violation, match=f"{finds} is violated") as found:
            list(map(swarm.run, range(first, first + 150)))
    swarm.run(found.value.seed)
