"""What one of several lighthouses waits for before its first quorum (`core.restart.standby`)."""

from __future__ import annotations

from typing import Any

from tests.core.scene import member, quorum
from torchft_x.core.journal import JournalEntry
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum.acceptors import QuorumIntersection
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.restart.recover import Adopt, Start
from torchft_x.core.restart.standby import StandbyRecovery
from torchft_x.core.types import Quorum

OLD = quorum(*map(member, "abc"), id=32)
NEW = quorum(*map(member, "abcde"), id=48, follows=(OLD,))


def gathering(*held: tuple[str, Quorum | None], place: int = 1, **config: Any) -> StandbyRecovery:
    """These have come, and have received that last."""
    made = StandbyRecovery(LighthouseConfig(place=place, **config), QuorumIntersection(place, 1 << 20))
    for name, q in held:
        come(made, name, q)
    return made


def come(to: StandbyRecovery, name: str, held: Quorum | None, granted_through: int = 0) -> None:
    to.hear(Hello(1, name, quorum=held, granted_through=granted_through))
    if held is not None:
        to.learn(held)


def waits(g: StandbyRecovery) -> Wait:
    decision = g.decide(0.0)
    assert isinstance(decision, Wait)
    return decision


def test_only_the_first_of_the_list_begins_a_job_that_is_new() -> None:
    assert gathering(place=0).decide(0.0) == Start()
    for g in (gathering(place=1), gathering(place=0, new_job=False), gathering(place=0, restarted=True)):
        assert waits(g).elsewhere


def test_the_newest_is_taken_over_as_soon_as_most_members_of_every_open_one_are_here() -> None:
    g = gathering(("d", NEW), ("e", NEW), ("a", OLD))
    assert "b, c" in waits(g).reason
    assert (waits(g).lease, waits(g).elsewhere) == (True, True)  # it may take long, and may be over elsewhere
    come(g, "b", OLD)
    assert g.decide(0.0) == Adopt(NEW, (OLD,))


def test_what_most_members_have_left_binds_nobody() -> None:
    """Where d and e are does not matter then, and neither does c."""
    g = gathering(("a", NEW), ("b", NEW), ("d", NEW))
    assert g.decide(0.0) == Adopt(NEW, ())


def test_who_holds_it_has_not_left_it() -> None:
    g = gathering(("a", NEW), ("d", NEW), ("e", NEW), ("b", OLD))
    assert g.decide(0.0) == Adopt(NEW, (OLD,))
    g.forget("b")
    assert "quorum 32" in waits(g).reason


def test_what_was_written_down_here_is_known_before_anybody_comes() -> None:
    g = gathering(place=0, legacy=JournalEntry(NEW, open=(OLD,)), new_job=False, restarted=True)
    assert "quorum 32" in waits(g).reason
    for name in "abc":
        come(g, name, None)  # it was never sent
    assert g.decide(0.0) == Adopt(NEW, (OLD,))


def test_the_highest_grant_that_was_reported_in_that_quorum_counts() -> None:
    g = gathering()
    assert g.granted_through(NEW) == 0
    for name, held, granted in (("a", NEW, 3), ("b", NEW, 7), ("c", NEW, 5), ("d", OLD, 9)):
        come(g, name, held, granted)
    assert g.granted_through(NEW) == 7
    g.end()
    come(g, "e", NEW, 8)
    assert g.granted_through(NEW) == 0  # from here on the tenure knows
