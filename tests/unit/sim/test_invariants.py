"""The checker is tested, too: a violation of every invariant, made by hand in a healthy cluster, is caught."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim import swarm
from tests.sim.base import Clock
from tests.sim.collective import Contribution
from tests.sim.config import WorldConfig
from tests.sim.data import Gradient
from tests.sim.ending import Departures
from tests.sim.group_node import GroupNode
from tests.sim.invariants import Violation
from tests.sim.rank_node import RankNode
from tests.sim.world import World
from torchft_x.core import heal
from torchft_x.core.commit.values import LocalVote
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.state import DataState, StreamState
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.types import Member, Part, Quorum, State


class Hand:
    """A healthy cluster, and the means to spoil it."""

    def __init__(self, **config: Any) -> None:
        self.world = World(3, WorldConfig(**{"groups": 2, **config}))
        self.world.run_for(2.0)
        self.checker = self.world.checker

    @property
    def quorum(self) -> Quorum:
        return self.checker.newest

    @property
    def machine(self) -> Lighthouse:
        return self.world.lighthouse.machine

    def rank(self, group: str = "g1", rank: int = 0) -> RankNode:
        return self.world.supervisors[group].node.ranks[rank]

    def vote(self) -> LocalVote:
        return LocalVote(self.quorum.top.step, self.quorum.id, len(self.quorum.members), True, True, None)

    def result(self) -> tuple[Contribution, ...]:
        names = tuple(m.replica_id for m in self.quorum.members)
        return tuple((name, self.quorum.top.step, 5, Part(i, names)) for i, name in enumerate(names))

    def issue(self, **changes: Any) -> None:
        """The next quorum, of members as they are."""
        self.checker.on_issue(self.world.lighthouse, replace(self.quorum, **{"id": self.quorum.id + 1, **changes}))

    def as_they_are(self) -> tuple[Member, ...]:
        return tuple(replace(m, state=self.rank(m.group_id).step.state) for m in self.quorum.members)

    def until_training(self) -> None:
        """Stop where nobody asks: all are in the middle of a step."""
        while any(self.rank(group).wait == "quorum" or self.checker.books["lh"].joins for group in ("g0", "g1")):
            self.world.run_for(0.0005)

    def until_asking(self, group: str) -> None:
        """Stop where that group's join stands at the lighthouse, and another one's does not."""
        book = self.checker.books["lh"]
        while not (len(book.joins) == 1 and book.waiting()[0][0].startswith(group)):
            self.world.run_for(0.0005)


def unequal_parameters(hand: Hand) -> None:
    hand.rank().value ^= 1
    hand.world.run_for(1.0)


def another_result(hand: Hand) -> None:
    for value, group in enumerate(("g0", "g1")):
        rank = hand.rank(group)
        rank.value = value
        hand.checker.on_committed(rank, hand.vote(), hand.result(), 2)


def a_join_that_lies(hand: Hand) -> None:
    hand.until_asking("g1")
    hand.rank().step.state = State(500, 1)
    hand.world.run_for(1.0)


def torn_but_not_said(hand: Hand) -> None:
    hand.until_asking("g1")
    hand.rank().step.torn = True
    hand.world.run_for(1.0)


def ranks_decide_differently(hand: Hand) -> None:
    rank = hand.rank()
    for commit in (True, False):
        hand.checker.on_concluded(rank, hand.vote(), commit, (rank.step.state, rank.value))


def a_stranger_takes_over(hand: Hand) -> None:
    hand.until_training()
    hand.issue(members=(replace(hand.quorum.members[0], replica_id="g9:1", state=State()),))


def a_commit_after_a_new_lineage(hand: Hand) -> None:
    hand.until_training()
    before, node = hand.quorum, hand.rank().node
    for running in hand.world.running():
        running.ended = True
    a_stranger_takes_over(hand)
    hand.checker.on_decision(node, before, True)


def a_commit_after_the_lease(hand: Hand) -> None:
    node = hand.rank().node
    node.machine._held_quorum.lease_until = node.process.clock.read(hand.world.now) - 0.1
    hand.checker.on_decision(node, hand.quorum, True)


def a_source_that_is_behind(hand: Hand) -> None:
    plan = heal.plan(hand.quorum, "g1:1", 0, init_sync=False)
    source = replace(hand.quorum.members[0], state=State(1, 1))
    quorum = replace(hand.quorum, members=(source, hand.quorum.members[1]))
    hand.checker.on_begin(hand.rank(), quorum, replace(plan, heal=True, sources=(source,)))


def a_drop_that_changes_parameters(hand: Hand) -> None:
    rank = hand.rank()
    hand.checker.on_concluded(rank, replace(hand.vote(), step=1000), False, (rank.step.state, rank.value ^ 1))


def a_wait_without_a_deadline(hand: Hand) -> None:
    rank = hand.rank()
    rank.wait = "quorum"
    rank.deadlines.until.clear()
    hand.checker.on_group_tick(rank.node)


def a_lighthouse_without_a_reason(hand: Hand) -> None:
    hand.until_training()
    hand.checker.books["lh"].joins[1000] = "g1:1"  # as if the machine had forgotten it
    hand.checker.on_lighthouse_tick(hand.world.lighthouse)


def a_gradient_for_nobody(hand: Hand) -> None:
    first, (name, step, value, part) = hand.result()
    hand.checker.on_committed(hand.rank(), hand.vote(), (first, (name, step, value, replace(part, rank=None))), 2)


def two_gradients_for_one_number(hand: Hand) -> None:
    """The second did not count where the first was computed."""
    (name, step, value, _), second = hand.result()
    kept = (name, step, value, Part(1, ("g9:1", name)))
    hand.checker.on_committed(hand.rank(), hand.vote(), (kept, second), 2)


def samples_once_more(hand: Hand) -> None:
    rank = hand.rank()
    hand.checker.samples.on_committed(rank, rank.step.state, (Gradient(hand.result()[0], (((0, 0, 1),),), 1.0),))


def a_wrong_scale(hand: Hand) -> None:
    rank = hand.rank()
    fresh = (rank.step.data.epoch + 9, 0, 1)
    hand.checker.samples.on_committed(rank, rank.step.state, (Gradient(hand.result()[0], ((fresh,),), 0.5),))


def a_position_without_its_samples(hand: Hand) -> None:
    rank = hand.rank()
    rank.step.data = replace(rank.step.data, epoch=rank.step.data.epoch + 1)
    hand.checker.on_held(rank, rank.step.state, rank.value)


def a_stream_without_its_item(hand: Hand) -> None:
    rank = hand.rank()
    rank.step.data = StreamState((rank.step.data.counts[0] + 1, *rank.step.data.counts[1:]))
    hand.checker.on_held(rank, rank.step.state, rank.value)


def another_position(hand: Hand) -> None:
    """Each of the two members is right for itself."""
    for count, group in enumerate(("g0", "g1")):
        rank = hand.rank(group)
        rank.step.data, rank.trained = DataState(0, 40, cursor=count), (1 << count) - 1
        hand.checker.samples.on_committed(rank, State(1000, 1), ())


def redone_another_way(hand: Hand) -> None:
    rank, vote, result = hand.rank(), hand.vote(), hand.result()
    hand.checker.on_committed(rank, vote, result, 2)
    hand.issue(members=hand.as_they_are())
    rank.value ^= 1
    hand.checker.on_committed(rank, replace(vote, quorum_id=hand.quorum.id), result, 2)


def stopped_at_unequal_steps(hand: Hand) -> None:
    hand.checker._troubled.clear()
    first, second = hand.as_they_are()
    ahead = replace(second, state=State(first.state.step + 1, first.state.committed_in))
    hand.checker._check_meeting(replace(hand.quorum, members=(first, ahead)))


def a_commit_that_is_counted_over(hand: Hand) -> None:
    hand.machine._members.get("g1:1").lease_sent = -1000.0
    hand.checker.on_decision(hand.rank().node, hand.machine.current, True)


def a_grant_without_end(hand: Hand) -> None:
    hand.machine._quorum_state.granted_through = 10**6
    for node in hand.world.running():
        node.machine._held_quorum.granted_through = 10**6
    swarm.check_newcomer(hand.world)


def one_that_waits_is_passed_over(hand: Hand) -> None:
    hand.until_asking("g1")
    hand.issue(members=hand.as_they_are()[:1])


def apart_for_ever(hand: Hand) -> None:
    hand.world.network.block("g1", "lh")
    hand.world.run_for(2.0)
    swarm.check_liveness(hand.world)


GRANTS = {"runs_on": True}
DEALT = {"data": DataOptions(Policy.CONSTANT, 3, 2)}
CASES: dict[str, tuple[str, Callable[[Hand], Any], dict[str, Any]]] = {
    "unequal parameters": ("I1", unequal_parameters, {}),
    "another result": ("I1", another_result, {}),
    "a join that lies": ("I1", a_join_that_lies, {}),
    "torn, and not said": ("I1", torn_but_not_said, {}),
    "ranks decide differently": ("I2", ranks_decide_differently, {}),
    "an id again": ("I3", lambda hand: hand.issue(id=hand.quorum.id), {}),
    "a stranger takes over": ("I4", a_stranger_takes_over, {}),
    "a commit after a new lineage": ("I4", a_commit_after_a_new_lineage, {}),
    "a commit after the lease": ("I4", a_commit_after_the_lease, {}),
    "a source that is behind": ("I5", a_source_that_is_behind, {}),
    "healed to something else": ("I5", lambda h: h.checker.on_held(h.rank(), h.rank().step.state, 12345), {}),
    "a drop that changes parameters": ("I6", a_drop_that_changes_parameters, {}),
    "too few participants": (
        "I7", lambda h: h.checker.on_committed(h.rank(), h.vote(), h.result()[:1], 1), {"min_replica_size": 2}
    ),
    "a wrong divisor": ("I7", lambda h: h.checker.on_committed(h.rank(), h.vote(), h.result(), 3), {}),
    "a wait without a deadline": ("I8", a_wait_without_a_deadline, {}),
    "a deadline without a reason": ("I8", lambda hand: hand.checker.on_deadline(hand.rank(), "quorum", ""), {}),
    "a lighthouse without a reason": ("I8", a_lighthouse_without_a_reason, {}),
    "a gradient for nobody": ("I9", a_gradient_for_nobody, {}),
    "two gradients for one number": ("I9", two_gradients_for_one_number, {}),
    "samples once more": ("I10", samples_once_more, DEALT),
    "a wrong scale": ("I10", a_wrong_scale, DEALT),
    "a position without its samples": ("I10", a_position_without_its_samples, DEALT),
    "a stream without its item": ("I10", a_stream_without_its_item, {**DEALT, "streams": True}),
    "another position": ("I10", another_position, DEALT),
    "redone another way": ("A1", redone_another_way, {"commit_vote": True}),
    "stopped at unequal steps": ("R7", stopped_at_unequal_steps, GRANTS),
    "a commit that is counted over": ("R13", a_commit_that_is_counted_over, GRANTS),
    "apart for ever": ("L1", apart_for_ever, {}),
    "a grant without end": ("L2", a_grant_without_end, GRANTS),
    "one that waits is passed over": ("L2", one_that_waits_is_passed_over, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_caught(case: str) -> None:
    invariant, spoil, config = CASES[case]
    hand = Hand(**config)
    with pytest.raises(Violation) as caught:
        spoil(hand)
    assert caught.value.invariant == invariant, caught.value.what


def test_a_violation_says_how_to_see_it_again() -> None:
    with pytest.raises(Violation) as caught:
        (hand := Hand()).issue(id=hand.quorum.id)
    text = str(caught.value)
    assert "I3 is violated at 2.0" in text
    assert "python -m tests.sim.run --seed 3 --trace" in text
    assert "lighthouse   issues q" in text
    assert "QuorumArrived: The group holds quorum q" in text  # what the machines have decided, and why
    assert "members, 2 of them up to date." in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text  # it crosses processes in the soak


def test_a_clock_that_is_too_slow_for_the_margin_is_found_out() -> None:
    """The limit of the model: a lease is safe while clocks differ by less than margin / lease. Here it is 10 times more.

    The lighthouse begins a new lineage while the group, on its own clock, is still inside its lease.
    """
    house = LighthouseConfig(
        lease=4.0, lease_margin=0.1, silence=SilenceLimits.all(1.0), boot_id="host", give_up_after=0.0
    )
    world = World(1, WorldConfig(groups=1, lighthouse=house, compute=(5.0, 5.0)))
    world.clocks["g0"] = Clock(0.0, 10.0, 0.7)
    (node,) = world.running()
    node.process.clock = world.clocks["g0"]
    world.run_while(lambda: world.checker.newest is None, 2.0)
    world.run_for(0.1)
    world.network.block("g0", "lh")
    world.network.block("lh", "g0")
    world.add_group("g2")
    with pytest.raises(Violation) as caught:
        world.run_for(20.0)
    assert caught.value.invariant == "I4"


def test_who_leads_from_an_ended_lineage_begins_another() -> None:
    """What was committed since then is undone, and may be committed another way (A1 holds within a lineage)."""
    hand = Hand()
    first, old = hand.quorum, hand.as_they_are()
    nobody = tuple(replace(m, state=State(), replica_id=f"{m.group_id}:new") for m in old)
    hand.checker.on_issue = lambda node, quorum: hand.checker._follow(quorum)  # type: ignore[method-assign]
    lineage = hand.checker.lineage
    hand.issue(members=old)
    assert hand.checker.lineage == lineage
    hand.checker.lineage += 1  # as `_check_succession` has found
    began = first.id + 2
    hand.issue(id=began, members=nobody)
    hand.issue(id=began + 1, members=tuple(replace(m, state=State(1, began)) for m in nobody))
    hand.issue(id=began + 2, members=nobody)  # back at what it began with: nothing was committed
    assert hand.checker.lineage == lineage + 1
    hand.issue(id=began + 3, members=(nobody[0], old[1]))
    hand.issue(id=began + 4, members=(nobody[0], old[1]))
    assert hand.checker.lineage == lineage + 2


def test_who_finishes_a_job_before_the_present_one_has_not_finished_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """R21, seed 7354307748878 (a fault of the checker): g2 is stopped while g1, which finished the job, comes back and
    begins another one with g0. g2's end belongs to the job before."""
    world = SimpleNamespace(now=0.0)
    departures = Departures(world)
    monkeypatch.setattr(departures, "_knowable", lambda node: True)

    def group_node(name: str) -> GroupNode:
        node = object.__new__(GroupNode)
        node.group, node.replica_id, node.ended = name.split(":")[0], name, True
        return node

    def quorum(*names: str) -> SimpleNamespace:
        return SimpleNamespace(members=[SimpleNamespace(replica_id=name) for name in names])

    departures.issued(quorum("g0:1", "g1:1", "g2:1"), new_lineage=False)
    departures.leaves(group_node("g1:1"))
    assert departures.issued(quorum("g0:1", "g1:2"), new_lineage=True) == ""
    departures.leaves(group_node("g2:1"))
    assert departures.issued(quorum("g0:2"), new_lineage=True) == ""
    departures.leaves(group_node("g0:2"))
    departures.issued(quorum("g2:2", "g1:3"), new_lineage=False)
    departures.leaves(group_node("g2:2"))
    assert "has finished" in departures.issued(quorum("g1:4"), new_lineage=True)
