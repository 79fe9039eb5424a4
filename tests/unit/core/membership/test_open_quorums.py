"""R9 where a quorum was sent and not received: whoever follows it must follow the one before it, too.

In each story a lighthouse dies in the end, and the next one is told by all members of an older quorum, in person and
with valid leases, that they know nothing newer (R8). Then nobody may have gone on without them.
"""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, issued, member, notes, quorum
from torchft_x.core.membership.current_quorum import OpenQuorums
from torchft_x.core.types import JoinReason, State

FAILED = JoinReason.FAILED


def lose(s: Scene, replica_id: str, *, alive: tuple[str, ...]) -> None:
    """Its stream broke before the newest quorum arrived, and it stays silent."""
    s.close(replica_id)
    s.wait(6.0, alive=alive)


def the_next_lighthouse(s: Scene, *replica_ids: str) -> list[list[str]]:
    """What one without memory issues, when these report what they hold and ask."""
    after = Scene(now=s.now, restarted=True, unix=2_000_000.0)
    for replica_id in replica_ids:
        held = s.quorums.get(replica_id)
        after.hello(replica_id, quorum=held, lease_left=100.0 if held else 0.0)
    effects = [e for r in replica_ids for e in after.join(r, State(), JoinReason.REJOINED)]
    return issued(effects)


@pytest.mark.parametrize("received", [False, True])
def test_R9_of_two_groups(received: bool) -> None:
    """q2={a}; q3={a, d} reaches d only, which stands where a stands, so that it carries q3. It must not go on alone,
    unless a has said that it has q3 before it is gone: the next lighthouse hears of q3 from it.
    """
    s = Scene()
    first = s.start("a:1", "d:1")
    at = State(1, first.id)
    s.close("d:1")
    s.wait(6.0, alive=("a:1",))
    assert issued(s.join("a:1", at, FAILED)) == [["a:1"]]
    second = s.quorums["a:1"]
    s.arrive("d:1", at, JoinReason.REJOINED)
    assert issued(s.join("a:1", at, FAILED)) == [["a:1", "d:1"]]
    if received:
        s.close("a:1")
        s.hello("a:1")  # names q3
    else:
        s.quorums["a:1"] = second  # q3 never arrives
    lose(s, "a:1", alive=("d:1",))
    alone = issued(s.join("d:1", at, FAILED))
    if received:
        assert alone == [["d:1"]]
        return
    assert not (alone and the_next_lighthouse(s, "a:1")), "a and d go on, each by itself"
    effects = s.wait(130.0, alive=("d:1",))  # until the lease of a is over
    assert issued(effects) == [["d:1"]]
    assert "new_lineage" in notes(effects)


def test_R9_of_three_groups() -> None:
    """q1={a, b} reaches a only, q2={a, c} reaches c only: c must not go on alone, but may with b, which is not in q2."""
    s = Scene()
    s.hello("a:1")
    s.hello("b:1")
    s.join("a:1")
    assert issued(s.join("b:1")) == [["a:1", "b:1"]]
    del s.quorums["b:1"]
    lose(s, "b:1", alive=("a:1",))
    s.arrive("c:1")
    q1 = s.quorums["a:1"]
    assert issued(s.join("a:1", State(), FAILED)) == [["a:1", "c:1"]]
    s.quorums["a:1"] = q1
    lose(s, "a:1", alive=("c:1",))
    assert issued(s.join("c:1", State(), FAILED)) == []
    assert the_next_lighthouse(s, "a:1", "b:1") == [["a:1", "b:1"]]
    assert issued(s.arrive("b:1")) == [["b:1", "c:1"]]


def test_proof_for_an_open_quorum_ends_the_wait_though_others_still_run() -> None:
    """q1={a} is waited for, d of q2={a, c, d} is silent: a has ended, and it doesn't matter what d does."""
    s = Scene()
    s.arrive("a:1")
    for name in ("c:1", "d:1"):
        s.hello(name)
        s.join(name)
    del s.quorums["a:1"]
    assert issued(s.join("a:1", State(), FAILED)) == [["a:1", "c:1", "d:1"]]
    lose(s, "a:1", alive=("c:1", "d:1"))
    lose(s, "d:1", alive=("c:1",))
    assert issued(s.join("c:1", State(), FAILED)) == []
    assert issued(s.exited("a:1")) == [["c:1"]]


def test_R9_who_follows_the_one_before_goes_on_at_once() -> None:
    """q3 reaches nobody but b, and b was in q2: nobody needs to be waited for."""
    s = Scene()
    first = s.start("a:1", "b:1", "c:1")
    at = State(1, first.id)
    s.join_all("a:1", "b:1", state=at)
    assert issued(s.join("c:1", at)) == [["a:1", "b:1", "c:1"]]
    s.close("a:1")
    s.close("c:1")
    s.wait(6.0, alive=("b:1",))
    assert issued(s.join("b:1", at, FAILED)) == [["b:1"]]


def chain(*quorums: tuple[int, str]) -> OpenQuorums:
    c = OpenQuorums()
    for id, names in quorums:
        c.leave(quorum(*map(member, names), id=id))
    return c


def ids(c: OpenQuorums) -> list[int]:
    return [q.id for q in c.open]


def test_whoever_has_received_a_newer_one_closes_those_of_its_own_before_it() -> None:
    c = chain((4, "ab"), (5, "a"), (6, "b"))
    c.received("x", 9)
    assert ids(c) == [4, 5, 6]  # none of its own
    c.received("a", 5)
    assert ids(c) == [5, 6]
    assert c.members == {"a", "b"}
    c.received("b", 7)
    assert ids(c) == [5]


def test_a_quorum_is_closed_when_all_of_its_members_are_over() -> None:
    c = chain((4, "ab"), (5, "a"))
    c.close(lambda replica_id: replica_id == "b")
    assert ids(c) == [4, 5]
    c.close(lambda replica_id: replica_id == "a")
    assert ids(c) == [4]
    c.close(lambda replica_id: True)
    assert (ids(c), c.members) == ([], frozenset())


def test_what_is_taken_over_replaces_all_that_was_open() -> None:
    chain = OpenQuorums()
    first, second = (quorum(member(f"{name}:1"), id=i) for name, i in (("a", 5), ("b", 6)))
    chain.leave(first)
    chain.begin()
    assert (chain.open, chain.members) == ((), frozenset())
    chain.leave(second)
    assert (chain.open, chain.members) == ((second,), {"b:1"})
