"""Rules of the standby and of the copies in memory (M1, M2) that are left out: random runs find each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim import swarm
from tests.sim.lighthouse_node import LighthouseNode
from tests.sim.quorum_checks import QuorumChecks
from tests.sim.shared import SharedDirectory
from tests.sim.variants import hunt, patched
from torchft_x.core import quorum as rule
from torchft_x.core.training.memory_checkpoint import CopyDecision, CopyVote, HeldCopies
from torchft_x.core.types import State


def _restores_never(self: HeldCopies, votes: Any, *, due: bool, commit: bool) -> CopyDecision:
    copy, held = commit and due and all(v & CopyVote.IDLE for v in votes), all(v & CopyVote.HOLDS for v in votes)
    return CopyDecision(CopyDecision.COPY * copy | CopyDecision.HELD * held)


def _copies_at_any_time(self: HeldCopies, votes: Any, *, due: bool, commit: bool) -> CopyDecision:
    torn = not commit and self.common is not None and any(v & CopyVote.TORN for v in votes)
    held = all(v & CopyVote.HOLDS for v in votes)
    return CopyDecision(CopyDecision.COPY * (commit and due) | CopyDecision.HELD * held | CopyDecision.RESTORE * torn)


def _over_the_older(self: HeldCopies, slots: Any) -> int:
    return min(range(2), key=lambda i: slots[i] or State())


NO_SWAP_BEFORE_SENDING = (LighthouseNode, "_confirm", LighthouseNode._holds)
NO_JOURNAL_IS_READ = (SharedDirectory, "inherit", lambda self, clock: None)
NOBODY_IS_WAITED_FOR = (  # M3 (decision 51) would hide that nothing is restored
    (rule, "_held_elsewhere", lambda s, chosen: None),
    (QuorumChecks, "_check_left_behind", lambda self, node, quorum: None),
)


@pytest.mark.parametrize(
    ("setting", "left_out", "first", "finds"),
    [
        ("STANDBY", [NO_SWAP_BEFORE_SENDING], 0, ""),
        ("STANDBY", [NO_JOURNAL_IS_READ], 0, ""),
        ("MEMORY", [(HeldCopies, "decide", _restores_never), *NOBODY_IS_WAITED_FOR], 910_200, "M1"),
        ("MEMORY", [(HeldCopies, "decide", _copies_at_any_time)], 910_000, "M2"),
        ("MEMORY", [(HeldCopies, "slot", _over_the_older)], 910_000, "M2"),
    ],
)
def test_a_rule_that_is_left_out_is_found(
    setting: str, left_out: list[Any], first: int, finds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rule the run that finds it goes well."""
    monkeypatch.setattr(swarm, setting, 1.0)
    found = hunt(patched(*left_out), range(first, first + 150), 60.0)
    assert found is not None
    assert found.invariant.startswith(finds)
    swarm.run(found.seed)
