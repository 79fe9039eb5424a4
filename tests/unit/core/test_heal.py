"""Who heals from whom: the peer's cases as tables, and what we add to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scene import member, quorum
from torchft_x.core.heal import MIRRORS, QuorumPlan, WorldSizeMode, later, participation, plan
from torchft_x.core.types import Member, Quorum, State
from torchft_x.errors import ConfigError, StepError


def of_steps(*steps: int, **fields: object) -> Quorum:
    """Members r0, r1, ... at these steps, all committed in one quorum."""
    return quorum(*(member(f"r{i}", State(s, 5 if s else 0), **fields) for i, s in enumerate(steps)))


# (steps of r0, r1, ...; own replica; group rank) -> (heal, source, destinations, top index, top size, store)
FIRST_STEP = [
    # All at step 0: everybody but the primary starts from its weights.
    ((0, 0), 0, 0, (False, None, (1,), 0, 2, "r0-store")),
    ((0, 0), 1, 0, (True, 0, (), 1, 2, "r0-store")),
    ((0, 0, 0), 2, 0, (True, 0, (), 2, 3, "r0-store")),
    ((0, 0, 0), 0, 3, (False, None, (1, 2), 0, 3, "r0-store")),
]
RECOVERY = [
    # Two behind, three at the top: sources are dealt in turn, shifted by the group rank.
    ((0, 1, 0, 1, 1), 0, 0, (True, 1, (), None, 3, "r1-store")),
    ((0, 1, 0, 1, 1), 1, 0, (False, None, (0,), 0, 3, "r1-store")),
    ((0, 1, 0, 1, 1), 2, 0, (True, 3, (), None, 3, "r1-store")),
    ((0, 1, 0, 1, 1), 3, 0, (False, None, (2,), 1, 3, "r1-store")),
    ((0, 1, 0, 1, 1), 4, 0, (False, None, (), 2, 3, "r1-store")),
    ((0, 1, 0, 1, 1), 0, 1, (True, 3, (), None, 3, "r3-store")),
    ((0, 1, 0, 1, 1), 2, 1, (True, 4, (), None, 3, "r3-store")),
    ((0, 1, 0, 1, 1), 1, 1, (False, None, (), 0, 3, "r3-store")),
    # One source for all.
    ((3, 9, 4), 0, 0, (True, 1, (), None, 1, "r1-store")),
    ((3, 9, 4), 1, 0, (False, None, (0, 2), 0, 1, "r1-store")),
    # Nobody behind.
    ((4, 4), 1, 0, (False, None, (), 1, 2, "r0-store")),
    ((4,), 0, 5, (False, None, (), 0, 1, "r0-store")),
]


def facts(p: QuorumPlan) -> tuple[object, ...]:
    return (p.heal, p.source_rank, p.dst_ranks, p.max_replica_rank, p.max_world_size, p.store_address)


@pytest.mark.parametrize(("steps", "own", "group_rank", "expected"), FIRST_STEP + RECOVERY)
def test_the_peers_table(steps: tuple[int, ...], own: int, group_rank: int, expected: tuple[object, ...]) -> None:
    p = plan(of_steps(*steps), f"r{own}", group_rank)
    assert facts(p) == expected
    assert (p.replica_rank, p.replica_world_size) == (own, len(steps))


@pytest.mark.parametrize("group_rank", [0, 1, 2, 5])
def test_all_ranks_begin_with_the_weights_of_one_group(group_rank: int) -> None:
    """Each rank may hold another part of the model; groups that start with different weights must not be mixed."""
    q = of_steps(0, 0, 0)
    plans = [plan(q, f"r{own}", group_rank) for own in range(3)]
    assert [p.source_rank for p in plans] == [None, 0, 0]
    assert plans[0].dst_ranks == (1, 2)
    assert {p.store_address for p in plans} == {f"r{group_rank % 3}-store"}


def test_without_init_sync_nobody_heals_at_step_0() -> None:
    for own in (0, 1):
        p = plan(of_steps(0, 0), f"r{own}", 0, init_sync=False)
        assert (p.heal, p.sources, p.dst_ranks) == (False, (), ())
        assert p.max_replica_rank == own
    assert not plan(of_steps(2, 2), "r1", 0, init_sync=True).heal  # it does nothing after the first step
    assert plan(of_steps(0, 2), "r0", 0, init_sync=False).source_rank == 1


def test_I1_before_the_first_commit_every_quorum_names_its_own_snapshot() -> None:
    """r1 offers its weights in quorum 20, copies r0's in quorum 21, and is the primary of quorum 22: what it offered in
    quorum 20 is of the same step, and not what the others start from."""
    fresh = [plan(replace(of_steps(0, 0), id=id), name, 0).snapshot for id in (20, 22) for name in ("r0", "r1")]
    assert fresh == [State(0, 20), State(0, 20), State(0, 22), State(0, 22)]
    later_on = quorum(member("a", State(4, 9)), member("b"), id=30)
    assert {plan(later_on, name, 0).snapshot for name in "ab"} == {State(4, 9)}


def test_ids_failures_and_handles_are_handed_on() -> None:
    q = quorum(
        member("a", commit_failures=1, handles=("a0", "a1")),
        member("b", commit_failures=3),
        id=90,
        config_id=80,
        number=4,
    )
    p = plan(q, "b", 1)
    assert (p.quorum_id, p.config_id, p.number) == (90, 80, 4)
    assert (p.commit_failures, p.replica_ids, p.handles) == (3, ("a", "b"), ("a1", ""))


@pytest.mark.parametrize(("failures", "source"), [(0, 0), (1, 1), (2, 3), (3, 0)])
def test_after_a_failure_the_next_source_is_tried_and_everybody_knows_which(failures: int, source: int) -> None:
    members = [member(f"r{i}", State(s, 5 if s else 0)) for i, s in enumerate((1, 1, 0, 1))]
    members[2] = replace(members[2], commit_failures=failures)
    plans = [plan(quorum(*members), f"r{own}", 0) for own in range(4)]
    assert plans[2].source_rank == source
    assert {m.replica_id for m in plans[2].sources} == {"r0", "r1", "r3"}
    assert [p.replica_rank for p in plans if 2 in p.dst_ranks] == [source]
    assert plan(quorum(member("a", State(3, 2), library="torchft_x/9.9"), member("b")), "b", 0).heal
    p = plan(of_steps(1, 1, 0, 1), "r2", 1)
    assert [m.replica_id for m in p.sources] == ["r1", "r3", "r0"]  # every usable one, the peer's choice first


def test_who_has_no_plan_is_told_so() -> None:
    with pytest.raises(StepError, match="no member of quorum 7 holds a complete state"):
        plan(quorum(member("a", torn=True)), "a", 0)
    with pytest.raises(ConfigError, match="x is not a member of quorum 7"):
        plan(of_steps(1, 1), "x", 0)


def test_same_step_committed_elsewhere_heals() -> None:
    """Section 8, "compare only the step": two members at step 1 with different weights are not the same."""
    q = quorum(member("a", State(1, 10)), member("b", State(1, 20)))
    assert facts(plan(q, "a", 0))[:2] == (True, 1)
    assert plan(q, "a", 0).max_replica_rank is None
    assert plan(q, "b", 0).top == State(1, 20)


def test_R19_a_torn_member_is_never_a_source_even_with_the_highest_state() -> None:
    q = quorum(member("a", State(4, 2)), member("b", State(5, 3), torn=True), member("c", State(3, 1)))
    assert plan(q, "b", 0).sources == plan(q, "c", 0).sources == (q.members[0],)
    assert plan(q, "a", 0).top == State(4, 2)
    assert plan(q, "a", 0).dst_ranks == (1, 2)


def test_R19_a_torn_member_heals_at_step_0_without_init_sync() -> None:
    q = quorum(member("a"), member("b", torn=True))
    assert plan(q, "b", 0, init_sync=False).source_rank == 0
    assert not plan(q, "a", 0, init_sync=False).heal


@pytest.mark.parametrize("own", ["r0", "r1", "r2"])
@pytest.mark.parametrize("group_rank", [0, 1])
def test_the_plan_for_a_later_step_is_what_it_would_be_anew(own: str, group_rank: int) -> None:
    q, base = of_steps(0, 0, 0), State(3, 7)
    anew = plan(q, own, group_rank, base=base)
    assert (anew.top, anew.heal) == (base, False)  # not the first step: nobody starts from another one's weights
    first = plan(q, own, group_rank)
    assert first.top == State()
    assert replace(later(first), top=base) == anew


PARTICIPATION = [
    # (steps, own, after heal, mode, min_replica_size) -> (rank, size)
    ((0, 0), 1, False, WorldSizeMode.DYNAMIC, 1, (1, 2)),  # R10: at step 0 everybody at the top contributes
    ((3, 5, 5), 0, False, WorldSizeMode.DYNAMIC, 1, (None, 2)),  # R10: a healer does not
    ((3, 5, 5), 2, False, WorldSizeMode.DYNAMIC, 1, (1, 2)),
    ((3, 5, 5), 0, True, WorldSizeMode.DYNAMIC, 1, (0, 3)),  # the state is there before its forward
    ((5, 5, 5), 1, False, WorldSizeMode.FIXED_WITH_SPARES, 2, (1, 2)),
    ((5, 5, 5), 2, False, WorldSizeMode.FIXED_WITH_SPARES, 2, (None, 2)),  # a spare
    ((5, 5), 1, False, WorldSizeMode.FIXED_WITH_SPARES, 3, (1, 2)),  # too few is not hidden
    ((3, 5, 5), 0, False, WorldSizeMode.FIXED_WITH_SPARES, 1, (None, 1)),
    ((3, 5, 5), 2, True, WorldSizeMode.FIXED_WITH_SPARES, 2, (None, 2)),
]


@pytest.mark.parametrize(("steps", "own", "after_heal", "mode", "least", "expected"), PARTICIPATION)
def test_R10_participation(
    steps: tuple[int, ...],
    own: int,
    after_heal: bool,
    mode: WorldSizeMode,
    least: int,
    expected: tuple[int | None, int],
) -> None:
    p = plan(of_steps(*steps), f"r{own}", 0)
    part = participation(p, contributes_after_heal=after_heal, mode=mode, min_replica_size=least)
    assert (part.rank, part.size) == expected
    assert part.rank is None or part.contributors[part.rank] == f"r{own}"


def test_I9_the_contributors_are_those_that_count() -> None:
    def ids(own: str, mode: WorldSizeMode, *, after_heal: bool = False, least: int = 1) -> tuple[str, ...]:
        p = plan(of_steps(3, 5, 5), own, 0)
        return participation(p, contributes_after_heal=after_heal, mode=mode, min_replica_size=least).contributors

    for own in ("r0", "r1", "r2"):  # equal for all members
        assert ids(own, WorldSizeMode.DYNAMIC) == ("r1", "r2")
        assert ids(own, WorldSizeMode.DYNAMIC, after_heal=True) == ("r0", "r1", "r2")
        assert ids(own, WorldSizeMode.FIXED_WITH_SPARES) == ("r1",)
        assert ids(own, WorldSizeMode.FIXED_WITH_SPARES, after_heal=True, least=2) == ("r0", "r1")


states = st.builds(State, st.integers(0, 3), st.integers(0, 2))


@st.composite
def quorums(draw: st.DrawFn) -> Quorum:
    count = draw(st.integers(1, 6))
    members: list[Member] = [member(f"r{i}", draw(states), torn=draw(st.booleans())) for i in range(count)]
    members[draw(st.integers(0, count - 1))] = member("r0" if count == 1 else f"r{count}", draw(states))
    return quorum(*{m.replica_id: m for m in members}.values())


@given(quorums(), st.integers(0, 5), st.booleans())
def test_all_ranks_plans_fit_together(q: Quorum, group_rank: int, init_sync: bool) -> None:
    plans = [plan(q, m.replica_id, group_rank, init_sync=init_sync) for m in q.members]
    assert len({p.store_address for p in plans}) == 1
    assert len({p.max_world_size for p in plans}) == 1
    at_top = [p.max_replica_rank for p in plans if p.max_replica_rank is not None]
    assert at_top == list(range(plans[0].max_world_size))
    for p, m in zip(plans, q.members, strict=True):
        assert p.heal or (m.state == p.top and not m.torn)
        for s in p.sources:  # I5
            assert s in q.carriers
            assert not plans[q.members.index(s)].heal
        if p.source_rank is not None:
            assert p.replica_rank in plans[p.source_rank].dst_ranks
        for dst in p.dst_ranks:
            assert plans[dst].source_rank == p.replica_rank
        assert set(p.mirrors) <= set(p.sources[1:])
        for mirror in p.mirrors:
            assert p.replica_rank in plans[q.members.index(mirror)].mirror_of
        for reader in p.mirror_of:
            assert m in plans[reader].mirrors


def at(host: str, name: str, step: int, **fields: object) -> Member:
    return member(name, State(step, 5), address=f"http://{host}:29510", **fields)


def test_further_carriers_are_mirrors_of_who_heals_from_another_host() -> None:
    q = quorum(at("a", "r0", 9), at("b", "r1", 9), at("c", "r2", 9), at("d", "r3", 4))
    p = plan(q, "r3", 0)
    assert [m.replica_id for m in p.sources] == ["r0", "r1", "r2"]
    assert [m.replica_id for m in p.mirrors] == ["r1", "r2"]
    assert [plan(q, f"r{i}", 0).dst_ranks for i in range(3)] == [(3,), (), ()]
    assert [plan(q, f"r{i}", 0).mirror_of for i in range(3)] == [(), (3,), (3,)]
    assert all(plan(q, f"r{i}", 0).offers for i in range(3))
    assert later(p).mirrors == later(plan(q, "r1", 0)).mirror_of == ()
    assert not later(plan(q, "r1", 0)).offers


def test_nobody_is_a_mirror_of_who_copies_from_memory() -> None:
    q = quorum(at("a", "r0", 9), at("b", "r1", 9), at("a", "r2", 4), at("b", "r3", 4))
    assert (plan(q, "r2", 0).source_rank, plan(q, "r3", 0).source_rank) == (0, 1)
    assert all(not p.mirrors and not p.mirror_of for p in (plan(q, f"r{i}", 0) for i in range(4)))


def test_there_are_only_so_many_mirrors() -> None:
    carriers = [at(f"h{i}", f"r{i}", 9) for i in range(6)]
    assert len(plan(quorum(*carriers, at("new", "r9", 4)), "r9", 0).mirrors) == MIRRORS


def test_the_first_weights_come_from_one_member_alone() -> None:
    q = quorum(*(replace(at(f"h{i}", f"r{i}", 0), state=State()) for i in range(4)))
    assert plan(q, "r1", 0).heal
    assert all(not plan(q, f"r{i}", 0).mirrors for i in range(4))
