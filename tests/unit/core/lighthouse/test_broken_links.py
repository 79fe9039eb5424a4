"""A link between two members is broken while both reach the lighthouse: one of them is left out, and tried again later.

Before, the lighthouse issued the same quorum again and again, and all stood as long as one link between two was broken.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.unit.core.lighthouse.test_late import Stage
from tests.unit.core.scene import issued, member, notes, of
from torchft_x.core.lighthouse.waiting import fewest_without
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import Join, LighthouseEffect, SendWaits
from torchft_x.core.types import JoinReason, State
from torchft_x.timing import TIMING

ALL = ("a:1", "b:1", "c:1")
FIRST = TIMING.late_penalty
BOTH = {"b:1": ("c:1",), "c:1": ("b:1",)}  # the link between b and c


class Linked(Stage):
    """A cluster in which members fail to connect."""

    def fails(self, unreached: dict[str, tuple[str, ...]], *members: str) -> list[LighthouseEffect]:
        """The members of the present quorum connect, and do not reach these others."""
        effects: list[LighthouseEffect] = []
        top = self.lighthouse.current.top
        for name in members or [m.replica_id for m in self.lighthouse.current.members]:
            effects += self.asks_again(name, top, unreached.get(name, ()))
        return effects

    def asks_again(self, name: str, state: State, unreached: tuple[str, ...] = ()) -> list[LighthouseEffect]:
        join = Join(self.sessions[name], member(name, state), JoinReason.FAILED, (), unreached=unreached)
        return self.feed(join)

    def train(self) -> list[LighthouseEffect]:
        """The members of the present quorum commit a step and ask."""
        state, effects = self.committed(), []
        for m in self.lighthouse.current.members:
            effects += self.asks(m.replica_id, state=state)
        return effects


def sentences(effects: list[LighthouseEffect]) -> list[str]:
    return [n.text for n in of(Note, effects) if n.event == "kept_out"]


@pytest.mark.parametrize("unreached", [BOTH, {"b:1": ("c:1",)}, {"c:1": ("b:1",)}])
def test_two_failures_to_connect_leave_one_of_the_two_out_whoever_of_them_says_so(
    unreached: dict[str, tuple[str, ...]],
) -> None:
    s = Linked()
    assert issued(s.fails(unreached)) == [list(ALL)]
    effects = s.fails(unreached)
    assert issued(effects) == [["a:1", "b:1"]]
    assert sentences(effects) == [
        "The link between c:1 and b:1 is broken: they could not connect with each other again, and the lighthouse hears "
        "both; the others go on without c:1, which is let in again in 10 s."
    ]
    told = [e.reason for e in of(SendWaits, s.passes(1.1)) if e.sessions == (s.sessions["c:1"],)]
    assert told == ["c:1 is left out: the link between c:1 and b:1 is broken; it is let in again in 9 s."]
    assert "member_lost" not in notes(effects)  # nobody was
    assert issued(s.train()) == [["a:1", "b:1"]]


def test_it_is_back_when_its_time_is_over_and_stays_if_the_link_is_mended() -> None:
    s = Linked()
    s.fails(BOTH)
    s.fails(BOTH)
    assert issued(s.passes(FIRST - 0.5)) == []
    s.passes(1.0)
    assert issued(s.train()) == [list(ALL)]
    for _ in range(3):
        assert issued(s.train()) == [list(ALL)]


def test_where_the_link_is_still_broken_one_failure_is_enough_and_its_time_doubles() -> None:
    s = Linked()
    s.fails(BOTH)
    s.fails(BOTH)
    for again in (1, 2, 3, 4, 5, 6, 7):
        s.passes(min(FIRST * 2.0 ** (again - 1), TIMING.late_penalty_most) + 0.5)
        assert issued(s.train()) == [list(ALL)]
        effects = s.fails(BOTH)
        assert issued(effects) == [["a:1", "b:1"]]
        assert f"let in again in {min(FIRST * 2.0**again, TIMING.late_penalty_most):g} s." in sentences(effects)[0]


def test_a_link_that_breaks_now_and_then_counts_though_steps_are_committed_in_between() -> None:
    s = Linked()
    s.fails(BOTH)
    s.asks("a:1", state=s.committed())  # committed with all
    s.asks("b:1", state=s.committed())
    s.asks("c:1", state=s.committed())
    assert issued(s.fails(BOTH)) == [["a:1", "b:1"]]


def test_failures_that_lie_more_than_a_minute_apart_are_no_series() -> None:
    s = Linked()
    for _ in range(3):
        assert issued(s.fails(BOTH)) == [list(ALL)]
        s.passes(TIMING.late_again + 1.0)


def test_failures_that_name_other_pairs_are_none_either() -> None:
    s = Linked()
    assert issued(s.fails({"a:1": ("b:1",)})) == [list(ALL)]
    assert issued(s.fails({"b:1": ("c:1",)})) == [list(ALL)]
    assert issued(s.fails({"a:1": ("c:1",)})) == [list(ALL)]


def test_broken_connections_and_late_reductions_are_no_broken_links() -> None:
    s = Linked()
    for _ in range(4):
        effects = []
        for name in ALL:
            others = tuple(x for x in ALL if x != name)
            effects += s.feed(Join(s.sessions[name], member(name), JoinReason.FAILED, others))
        assert issued(effects) == [list(ALL)]


def test_who_has_fewer_good_links_is_left_out() -> None:
    """a is cut off from both others: it would be the last to go by its rank."""
    s = Linked()
    alone = {"a:1": ("b:1", "c:1"), "b:1": ("a:1",), "c:1": ("a:1",)}
    s.fails(alone)
    effects = s.fails(alone)
    assert issued(effects) == [["b:1", "c:1"]]
    assert "The link between a:1 and b:1, c:1 is broken" in sentences(effects)[0]


def test_two_broken_links_leave_two_out() -> None:
    s = Linked("a:1", "b:1", "c:1", "d:1")
    pairs = {"a:1": ("b:1",), "c:1": ("d:1",)}
    s.fails(pairs)
    assert issued(s.fails(pairs)) == [["a:1", "c:1"]]


def test_a_quorum_counts_once_for_a_link_though_it_leaves_out_who_has_another_broken_one() -> None:
    s = Linked("a:1", "b:1", "c:1", "d:1")
    s.fails({"a:1": ("b:1",)})
    assert issued(s.fails({"a:1": ("b:1",), "c:1": ("d:1",)})) == [["a:1", "c:1", "d:1"]]


def test_where_nobody_reaches_anybody_one_trains_alone() -> None:
    s = Linked()
    nobody = {"a:1": ("b:1", "c:1"), "b:1": ("a:1", "c:1"), "c:1": ("a:1", "b:1")}
    s.fails(nobody)
    assert issued(s.fails(nobody)) == [["a:1"]]


def test_who_holds_the_newest_state_alone_is_not_left_out() -> None:
    s = Linked()
    s.fails(BOTH)
    committed = s.committed()  # in the second quorum, by c alone, as far as the others know
    s.asks_again("a:1", State())
    s.asks_again("b:1", State(), ("c:1",))
    effects = s.asks_again("c:1", committed, ("b:1",))
    assert issued(effects) == [["a:1", "c:1"]]
    assert s.lighthouse.current.top == committed


def test_who_copies_is_left_out_and_not_its_only_source() -> None:
    s = Linked("a:1", "b:1")
    s.asks("a:1", state=State())
    s.asks("b:1", state=s.committed())
    (newest,) = s.lighthouse.current.carriers
    assert newest.replica_id == "b:1"
    link = {"a:1": ("b:1",)}
    for _ in range(2):
        s.asks_again("a:1", State(), link["a:1"])
        effects = s.asks_again("b:1", newest.state)
    assert issued(effects) == [["b:1"]]
    assert "new_lineage" not in notes(effects)


def test_nobody_is_left_out_where_too_few_would_be_left() -> None:
    s = Linked(min_replicas=3)
    for _ in range(4):
        effects = s.fails(BOTH)
        assert issued(effects) == [list(ALL)]
        assert sentences(effects) == []


def test_a_member_that_is_gone_has_no_link() -> None:
    """Its silence is judged by others: who can't connect with a dead one is not left out for it."""
    s = Linked()
    for _ in range(2):
        s.fails({"a:1": ("c:1",), "b:1": ("c:1",)}, "a:1", "b:1")
        effects = s.exited("c:1")
        if issued(effects):
            break
    assert issued(effects) == [["a:1", "b:1"]]
    assert issued(s.fails({"a:1": ("c:1",), "b:1": ("c:1",)})) == [["a:1", "b:1"]]
    assert issued(s.fails({"a:1": ("c:1",), "b:1": ("c:1",)})) == [["a:1", "b:1"]]


def test_who_is_left_out_is_let_in_when_nobody_else_is_left() -> None:
    s = Linked()
    s.fails(BOTH)
    s.fails(BOTH)
    s.exited("a:1")
    s.exited("b:1")
    assert issued(s.wait(1.0, alive=("c:1",))) == [["c:1"]]


def test_a_new_attempt_is_tried_at_once_and_the_link_is_remembered() -> None:
    s = Linked()
    s.fails(BOTH)
    s.fails(BOTH)
    s.exited("c:1")
    s.hello("c:2")
    s.asks("c:2", state=State())
    assert issued(s.train()) == [["a:1", "b:1", "c:2"]]
    assert issued(s.fails({"b:1": ("c:2",)})) == [["a:1", "b:1"]]


class TestFewestWithout:
    ANY = staticmethod(lambda names: True)

    def test_of_each_pair_one_and_no_more(self) -> None:
        members = ["a", "b", "c", "d"]
        links = [(x, y) for i, x in enumerate(members) for y in members[i + 1 :]]
        for chosen in product((False, True), repeat=len(links)):
            broken = [link for link, is_in in zip(links, chosen, strict=True) if is_in]
            out = fewest_without(members, broken, self.ANY)
            assert not [link for link in broken if not set(link) & set(out)]
            assert len(out) <= len(broken)
            assert out == fewest_without(members, broken[::-1], self.ANY)

    def test_who_must_stay_stays(self) -> None:
        assert fewest_without(["a", "b"], [("a", "b")], lambda names: "b" not in names) == ["a"]
        assert fewest_without(["a", "b"], [("a", "b")], lambda names: False) == []

    def test_nothing_is_done_by_halves(self) -> None:
        links = [("a", "b"), ("c", "d")]
        assert fewest_without(["a", "b", "c", "d"], links, lambda names: len(names) < 2) == []
