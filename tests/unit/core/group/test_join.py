"""One join out of the asks of all ranks."""

from __future__ import annotations

import pytest

from torchft_x.core.commit.two_phase import TwoPhaseCommit
from torchft_x.core.group.join import GroupConfig, make_join
from torchft_x.core.messages.group import Ask
from torchft_x.core.messages.lighthouse import Join
from torchft_x.core.types import JoinReason, State

NAME = "g:1"


def joined(*asks: Ask, lapsed: bool = False) -> Join:
    config = GroupConfig(replica_id=NAME, address="http://g", store_address="g-store", world_size=len(asks))
    two_phase = TwoPhaseCommit(NAME, between_groups=False)
    return make_join(config, {a.rank: a for a in asks}, State(4, 7), two_phase, None, lapsed=lapsed)


def ask(rank: int = 0, reason: JoinReason = JoinReason.BOUNDARY, **fields: object) -> Ask:
    return Ask(rank + 1, rank, **{"state": State(4, 7), "reason": reason, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", list(JoinReason))
def test_only_a_plain_ask_becomes_a_return_when_the_quorum_in_hand_has_lapsed(reason: JoinReason) -> None:
    """The others have released its collectives or gone on; any other reason tells them so already."""
    assert joined(ask(reason=reason)).reason is reason
    lapsed = JoinReason.REJOINED if reason is JoinReason.BOUNDARY else reason
    assert joined(ask(reason=reason), lapsed=True).reason is lapsed


def test_of_several_reasons_the_one_that_says_most() -> None:
    weakest_last = [JoinReason.BOUNDARY, JoinReason.HEALED, JoinReason.NEW, JoinReason.REJOINED, JoinReason.FAILED]
    for more in range(1, 5):
        asks = [ask(rank, reason) for rank, reason in enumerate(weakest_last[: more + 1])]
        assert joined(*asks).reason is weakest_last[more]


def test_I2_the_weakest_rank_speaks_for_the_group() -> None:
    join = joined(
        ask(0, suspects=("b:1",), handle="h0", unreached=("c:1",)),
        ask(1, suspects=("c:1", "a:1"), shrink_only=True, votes_late=True, unreached=("b:1", "c:1")),
        ask(2, commit_failures=2),
    )
    member = join.member
    assert join.suspects == ("a:1", "b:1", "c:1")
    assert join.unreached == ("b:1", "c:1")
    assert (member.torn, member.shrink_only, member.commit_failures) == (False, True, 2)
    assert member.votes_late
    assert member.handles == ("h0", "", "")
    assert joined(ask(0), ask(1)).member.handles == ()


@pytest.mark.parametrize("odd", [{"torn": True}, {"state": State(3, 7)}, {"state": State(4, 8)}])
def test_a_rank_that_is_torn_or_elsewhere_makes_the_group_torn(odd: dict[str, object]) -> None:
    assert joined(ask(0), ask(1, **odd)).member.torn  # type: ignore[arg-type]
    assert not joined(ask(0), ask(1)).member.torn
