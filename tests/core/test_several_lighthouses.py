"""Several lighthouses that serve the same groups: what one of them may conclude without the others.

Found by tests/sim with `swarm.STANDBY`; the stories are in docs/simulator_found.md.
"""

from __future__ import annotations

import pytest

from tests.core.scene import Scene, issued, member, overs, quorum
from torchft_x.core.types import JoinReason, Quorum, State

T = State(4, 3)


def elsewhere(*names: str, id: int) -> Quorum:
    """A quorum that another lighthouse has issued."""
    return quorum(*(member(n, T) for n in names), id=id)


class Lights(Scene):
    def bring(self, replica_id: str, held: Quorum, state: State = T) -> list[list[str]]:
        """It comes over from another lighthouse and asks."""
        self.hello(replica_id, quorum=held, state=state)
        return issued(self.join(replica_id, state, JoinReason.REJOINED))


def test_a_lighthouse_learns_that_another_one_has_issued_a_newer_quorum() -> None:
    """a and b alone are most of q1, but not of q2 of another lighthouse, in which c, d and e go on."""
    s = Lights(majority=True)
    first = s.start("a:1", "b:1", "c:1")
    newer = elsewhere("a:1", "b:1", "c:1", "d:1", "e:1", id=first.id + 10)
    for name in ("a:1", "b:1", "c:1"):
        s.close(name)
    s.wait(6.0)
    assert s.bring("a:1", newer) == []
    assert s.bring("b:1", newer) == []
    assert issued(s.wait(50.0, alive=("a:1", "b:1"))) == []
    assert "takes over quorum" in s.lighthouse.undecided
    s.bring("d:1", newer)  # three of five
    s.wait(6.0, alive=("a:1", "b:1", "d:1"))
    assert s.lighthouse.current is not None
    assert [m.group_id for m in s.lighthouse.current.members] == ["a", "b", "d"]
    assert s.lighthouse.current.id > newer.id


def test_of_two_halves_only_the_one_at_the_first_lighthouse_goes_on() -> None:
    """Both wait for the lease of the other half, and after it both would go on."""
    held = elsewhere("a:1", "b:1", id=7)
    first, second = Lights(majority=True, new_job=False), Lights(standby=True, new_job=False)
    first.bring("a:1", held)
    second.bring("b:1", held)
    assert issued(first.wait(500.0, alive=("a:1",)))
    assert issued(second.wait(500.0, alive=("b:1",))) == []


def test_a_first_lighthouse_that_is_back_does_not_begin_anew() -> None:
    """Nobody reports to it: the groups go on at the standby, which renews their leases."""
    s = Lights(majority=True, new_job=False, restarted=True)
    s.hello("d:1")
    s.join("d:1")
    assert issued(s.wait(500.0, alive=("d:1",))) == []
    assert "may go on at another lighthouse" in s.lighthouse.undecided


def test_a_lease_that_ends_here_may_have_been_renewed_elsewhere() -> None:
    """Most of q1 are here, but its only carrier is not: no new lineage."""
    held = quorum(member("a:1", T), member("b:1"), member("c:1"), id=7)
    s = Lights(majority=True, new_job=False)
    s.bring("b:1", held, State())
    s.bring("c:1", held, State())
    assert issued(s.wait(500.0, alive=("b:1", "c:1"))) == []


def test_members_whose_leases_are_over_are_members() -> None:
    """All have waited for longer than their leases: who is here counts, for nobody went on without most of them."""
    held = elsewhere("a:1", "b:1", "c:1", id=7)
    s = Lights(standby=True, new_job=False)
    for name in ("a:1", "b:1"):
        s.hello(name, quorum=held, state=T, lease_left=0.0)
        s.join(name, T, JoinReason.REJOINED)
    assert issued(s.wait(7.0, alive=("a:1", "b:1"))) == [["a:1", "b:1"]]


@pytest.mark.xfail(strict=True, reason="known: two lighthouses that do not speak with each other (simulator_found.md)")
def test_that_all_members_have_ended_does_not_prove_that_they_had_no_successors() -> None:
    """q1={a} here. a goes on at the standby, where b joins it, and dies: b goes on there. And c comes here."""
    s = Lights(majority=True)
    s.start("a:1")
    s.close("a:1")
    s.wait(6.0)
    s.exited("a:1")
    s.hello("c:1")
    assert issued(s.join("c:1")) == []
    assert overs(s.wait(1.0, alive=("c:1",))) == []
