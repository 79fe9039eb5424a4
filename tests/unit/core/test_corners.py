"""Rules of the lighthouse that only show in a corner: who leaves where, who comes back how, what is asked twice."""

from __future__ import annotations

import pytest

from tests.unit.core.membership.test_failure_detector import Watched
from tests.unit.core.scene import Scene, issued, member, notes, of, overs, quorum
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.lighthouse import (
    AttemptHalted,
    Heartbeat,
    Hello,
    Keep,
    Probe,
    Progress,
    SendWaits,
)
from torchft_x.core.types import JoinReason, State


class TestLeaving:
    """Somebody may wait in a collective for whoever leaves inside a step; at a boundary nobody does."""

    @pytest.mark.parametrize(
        ("granted", "asked", "step", "history", "told"),
        [
            (1, False, 0, 0, True),
            (1, False, 1, 0, False),  # the last step that it was granted
            (1, True, 0, 0, False),
            (1, False, 9, 1, True),  # as many steps of another history are no boundary of this one
            (5, False, 4, 0, True),
            (5, False, 5, 0, False),
        ],
    )
    def test_inside_a_step_the_others_are_told(
        self, granted: int, asked: bool, step: int, history: int, told: bool
    ) -> None:
        s = Scene()
        q = s.start("a:1", "b:1")
        s.lighthouse._quorum_state.granted_through = granted
        if asked:
            s.join("b:1", q.top, JoinReason.BOUNDARY)
        effects = s.leave("b:1", State(step, q.id + history) if step else State())
        assert overs(effects) == ([((s.sessions["a:1"],), ("b:1",))] if told else [])
        assert notes(effects) == (["leave", "member_lost"] if told else ["leave"])

    def test_whoever_never_received_the_quorum_is_in_no_collective(self) -> None:
        s = Scene.started("a:1", "b:1")
        assert overs(s.hello("b:1", quorum=None, lease_left=0.0))  # what the others wait for is said here
        assert not overs(s.leave("b:1", State()))


class TestComingBack:
    def test_before_the_first_quorum_it_counts_again(self) -> None:
        s = Scene(silence=SilenceLimits(alone=1.0), join_timeout=0.0)
        for name in ("a:1", "b:1"):
            s.hello(name)
        assert not of(Probe, s.wait(1.5, alive=("a:1",)))
        assert s.record("b:1").lost
        s.hello("b:1")
        assert not s.record("b:1").lost
        assert not issued(s.join("a:1"))  # one of two is not more than half
        assert issued(s.join("b:1")) == [["a:1", "b:1"]]
        s.close("a:1")
        s.hello("a:1")
        assert s.lighthouse._quorum_state.silent == {"a:1", "b:1"}  # it is here and has not asked

    def test_one_of_the_quorum_that_was_lost_is_waited_for_when_it_asks_and_not_before(self) -> None:
        s = Scene(silence=SilenceLimits(alone=1.0), lease=5.0)
        s.start("a:1", "b:1", "c:1")
        assert overs(s.wait(1.5, alive=("a:1", "c:1")))
        assert not overs(s.hello("b:1", quorum=None, lease_left=0.0))  # the others know
        assert s.record("b:1").lost
        s.join("a:1", s.committed())
        assert issued(s.join("c:1", s.committed())) == [["a:1", "c:1"]]

    def test_somebody_outside_who_was_silent_is_here_again(self) -> None:
        s = Scene(silence=SilenceLimits(alone=1.0))
        s.start("a:1")
        s.hello("b:1")
        s.wait(1.5, alive=("a:1",))
        assert s.record("b:1").lost
        assert not overs(s.heard("b:1"))  # it holds nothing that could be over
        assert not s.record("b:1").lost
        s.wait(1.5, alive=("a:1",))
        s.hello("b:1")
        assert not s.record("b:1").lost
        assert "b:1" in s.lighthouse._quorum_state.silent

    def test_a_new_session_refutes_the_refused_connect_of_one_that_nobody_waits_for(self) -> None:
        """Before the first quorum it is waited for again at once, and a proof that stayed would hold once it falls silent."""
        s = Scene()
        s.hello("a:1")
        s.hello("b:1")
        s.close("b:1")
        s.refused("b:1")
        assert s.record("b:1").proof
        s.hello("b:1")
        assert not s.record("b:1").lost
        assert not s.record("b:1").proof

    @pytest.mark.parametrize("joins", [False, True])
    def test_a_word_from_it_refutes_the_refused_connect(self, joins: bool) -> None:
        s = Scene.started("a:1", "b:1")
        record = s.record("b:1")
        s.lighthouse._waiting.probe(record, s.now)
        s.refused("b:1")
        assert record.proof
        if joins:
            s.join("b:1", State(), JoinReason.FAILED)
            assert (record.lost, record.notified) == ("", False)
        else:
            s.heard("b:1")
        assert record.proof == ""


class TestStopped:
    def lost_in_its_boundary(self) -> Watched:
        """1:a waits for 0:a, and a worker of it is stopped."""
        s = Watched()
        s.join("1:a", State(5, s.quorums["1:a"].id))
        s.feed(AttemptHalted(101, "t1", "worker 1"))
        s.pass_time(2.0, "0:a", watched=(0, 1))
        assert s.record("1:a").lost
        return s

    def test_it_goes_on_inside_a_step_that_the_others_have_left(self) -> None:
        s = Watched()
        s.feed(AttemptHalted(101, "t1", "worker 1"))
        assert s.lost(s.pass_time(2.0, "0:a", watched=(0, 1)))
        s.feed(AttemptHalted(101, "t1", ""))
        assert s.record("1:a").lost

    def test_its_silence_counts_on_from_before(self) -> None:
        s = self.lost_in_its_boundary()
        s.feed(AttemptHalted(101, "t1", ""))
        s.pass_time(7.9, "0:a", watched=(0, 1))
        assert not s.record("1:a").lost
        s.pass_time(0.3, "0:a", watched=(0, 1))
        assert s.record("1:a").lost

    def test_it_is_lost_though_its_group_server_speaks_and_if_its_address_has_refused(self) -> None:
        s = self.lost_in_its_boundary()
        s.heard("1:a")
        assert s.record("1:a").lost
        s.record("1:a").proof = "its address refuses connections"
        s.feed(AttemptHalted(101, "t1", ""))
        assert s.record("1:a").lost


class TestIds:
    """R1: above every id that was ever heard."""

    @pytest.mark.parametrize("told", [{"state": State(3, 1 << 50)}, {"quorum": quorum(member("b:1"), id=1 << 50)}])
    def test_a_hello_tells_of_ids(self, told: dict[str, object]) -> None:
        s = Scene.started("a:1")
        s.hello("b:1", **told)
        assert s.lighthouse._quorum_state.next_id == (1 << 50) + 1


class TestJoins:
    def test_how_long_its_steps_take_is_told_inside_a_grant_too(self) -> None:
        s = Scene()
        q = s.start("a:1", "b:1")
        s.feed(Progress(s.sessions["a:1"], q.id, 1, 1, 7.0))
        assert s.record("a:1").longest_step == 7.0

    def test_a_peers_client_that_asks_again_has_waited_since_it_asked_first(self) -> None:
        s = Scene(min_replicas=2)
        s.unary("p", 1)
        s.now = 3.0
        s.unary("p", 2)
        p = s.record("p")
        assert (p.join.since, p.heard, p.address) == (0.0, 3.0, member("p").address)

    def test_a_heartbeat_on_the_unary_service_brings_no_member_of_ours_back(self) -> None:
        s = Scene(silence=SilenceLimits(alone=1.0))
        s.start("a:1", "b:1")
        s.wait(1.5, alive=("a:1",))
        s.feed(Heartbeat("b:1"))
        assert s.record("b:1").lost

    def test_a_join_is_a_sign_of_life_and_is_noted_once(self) -> None:
        s = Scene.started("a:1", "b:1")
        assert "joined" in notes(s.arrive("c:1"))
        s.now = 1.5
        assert "joined" not in notes(s.join("c:1", address=""))
        assert s.record("c:1").heard == 1.5
        home = member("c:1").address  # known from its hello
        assert [p.address for p in of(Probe, s.close("c:1"))] == [home]


class TestTicks:
    @pytest.mark.parametrize(("at", "noted"), [(2.0, False), (2.5, True)])
    def test_a_starved_lighthouse_says_so_when_it_has_mattered(self, at: float, noted: bool) -> None:
        s = Scene(tick=0.5)
        s.now = at
        assert ("starved" in notes(s.feed(Tick()))) is noted

    def test_whoever_is_away_is_probed_again_after_a_second(self) -> None:
        s = Scene.started("a:1", "b:1")
        assert of(Probe, s.close("b:1"))
        for s.now, again in ((0.9, False), (1.0, True), (1.9, False), (2.0, True)):
            assert bool(of(Probe, s.feed(Tick()))) is again

    def test_what_is_waited_for_is_said_after_a_second(self) -> None:
        s = Scene.started("a:1", "b:1", tick=0.5, now=16.0)
        s.now = 20.0
        s.feed(Tick())
        s.join("a:1", s.committed())
        said = []
        for s.now in (20.5, 21.0, 21.5):
            s.feed(Hello(99, "x:1"))  # something has changed
            effects = s.feed(Tick())
            said.append((notes(effects), [w.sessions for w in of(SendWaits, effects)]))
        assert said == [([], []), (["undecided"], [(s.sessions["a:1"],)]), ([], [])]


class TestKept:
    def test_peers_clients_have_no_entry_in_the_journal(self) -> None:
        s = Scene(keeps=True, join_timeout=0.0)
        (keep,) = of(Keep, s.unary("p", 1))
        assert [m.replica_id for m in keep.entry.quorum.members] == ["p"]
        assert keep.entry.members == ()

    def test_of_the_same_quorum_no_more_is_said_than_a_higher_grant(self) -> None:
        s = Scene(keeps=True)
        s.hello("a:1", runs_on=True)
        (first,) = of(Keep, s.join("a:1"))
        s.hello("a:1", runs_on=False, boot_id="another")
        q = s.quorums["a:1"]
        s.lighthouse._quorum_state.granted_through = 9
        (second,) = of(Keep, s.feed(Tick()))
        assert (second.entry.quorum, second.entry.granted_through) == (q, 9)
        assert second.entry.members is first.entry.members


class TestWaits:
    """Who is told what it waits for, and when: of those in one boundary each by its own clock."""

    def notified(self, s: Scene, *times: float) -> dict[float, dict[str, str]]:
        names = {session: replica_id for replica_id, session in s.sessions.items()}
        said: dict[float, dict[str, str]] = {}
        for s.now in times:
            for effect in of(SendWaits, s.feed(Tick())):
                said.setdefault(s.now, {}).update({names[x]: effect.reason for x in effect.sessions})
        return said

    def test_the_first_is_told_in_time_however_many_come_after_it(self) -> None:
        s = Scene()
        s.start(*(f"{x}:1" for x in "abcd"))
        assert not self.notified(s, 4.9)
        for at, name in ((5.0, "a:1"), (5.2, "b:1"), (5.4, "c:1")):
            s.now = at
            s.join(name, s.committed())
            assert not self.notified(s, at)
        said = self.notified(s, 5.9, 6.0, 6.1, 6.2, 6.3, 6.4, 6.5)
        assert {at: sorted(who) for at, who in said.items()} == {6.0: ["a:1"], 6.2: ["b:1"], 6.4: ["c:1"]}

    def test_it_is_said_again_in_each_second(self) -> None:
        s = Scene(silence=SilenceLimits.all(60.0))
        s.start("a:1", "b:1", "c:1")
        s.join("a:1", s.committed())
        assert self.notified(s, 1.0) == {1.0: {"a:1": "Waiting for members of q1 to ask: b:1, c:1."}}
        s.now = 2.0
        s.join("b:1", s.committed())
        last = "Waiting for members of q1 to ask: c:1."
        both = {"a:1": last, "b:1": last}
        assert self.notified(s, 2.5, 2.9, 3.0, 3.5, 4.0) == {2.5: {"a:1": last}, 3.0: both, 4.0: both}

    def test_a_reason_that_changes_with_the_time_alone(self) -> None:
        s = Scene(new_job=False, hello_grace=3.0, min_replicas=2, silence=SilenceLimits.all(60.0))
        s.arrive("a:1")
        said = self.notified(s, 1.0, 2.0, 3.0, 4.0)
        assert [(at, "has just started" in said[at]["a:1"], "min_replicas" in said[at]["a:1"]) for at in said] == [
            (1.0, True, False),
            (2.0, True, False),
            (3.0, False, True),
            (4.0, False, True),
        ]

    def test_the_same_reason_is_noted_again_after_a_quorum(self) -> None:
        s = Scene(min_replicas=2, silence=SilenceLimits.all(60.0))
        s.start("a:1", "b:1")
        noted = []
        for n, partner in enumerate(("b:1", "c:1")):
            s.leave(partner, s.committed())
            s.now = 10.0 * n + 1.0
            s.join("a:1", s.committed())
            s.now += 1.5
            noted += [e.text for e in of(Note, s.feed(Tick())) if e.event == "undecided"]
            if n == 0:
                assert issued(s.arrive("c:1")) == [["a:1", "c:1"]]
        assert noted == ["New quorum not ready, only have 1 participants (a:1), need min_replicas 2."] * 2


class TestReceived:
    """A quorum is open until a member says something that shows that it has received a newer one (R9)."""

    def test_by_a_peers_client_that_asks(self) -> None:
        s = Scene()
        s.beat("p", "r")
        s.unary("p", 1)
        assert issued(s.unary("r", 2)) == [["p", "r"]]
        s.unary("p", 3, 1)
        assert issued(s.unary("r", 4, 1)) == [["p", "r"]]
        assert len(s.lighthouse._quorum_state.chain.open) == 1
        s.unary("p", 5, 2)
        assert s.lighthouse._quorum_state.chain.open == ()

    @pytest.mark.parametrize("asks", [True, False])
    def test_by_a_join_and_by_progress(self, asks: bool) -> None:
        s = Scene()
        first = s.start("a:1", "b:1")
        s.join_all("a:1", "b:1", state=s.committed())
        assert s.lighthouse._quorum_state.chain.open == (first,)
        if asks:
            s.join("a:1", s.committed())
        else:
            s.feed(Progress(s.sessions["a:1"], s.quorums["a:1"].id, 1, 1))
        assert s.lighthouse._quorum_state.chain.open == ()


class TestAdopting:
    """A lighthouse without memory takes a quorum over, and says only what somebody must know (R8)."""

    Q = quorum(member("a:1"), member("b:1"))

    def fresh(self) -> Scene:
        return Scene(new_job=False, restarted=True)

    def test_nobody_outside_is_told_and_whoever_never_received_it_is_waited_for_when_it_is_back(self) -> None:
        s = self.fresh()
        s.hello("c:1")
        s.hello("d:1")
        assert notes(s.leave("d:1", State())) == ["leave"]
        s.hello("b:1", quorum=None)
        s.close("b:1")
        effects = s.hello("a:1", quorum=self.Q, lease_left=50.0)
        assert "adopted" in notes(effects)
        assert not overs(effects)
        assert overs(s.hello("b:1", quorum=None)) == [((s.sessions["a:1"],), ())]


def test_how_far_a_member_ran_without_a_lighthouse_stands_in_the_status() -> None:
    s = Scene()
    q = s.start("a:1", "b:1")
    s.hello("a:1", state=State(5, q.id), runs_on=True, granted_through=6)
    assert s.lighthouse.reached == 5
    s.hello("b:1", state=State(3, q.id), runs_on=True)
    assert s.lighthouse.reached == 5
    s.hello("b:1", state=State(9, 3), runs_on=True)  # of another history
    assert s.lighthouse.reached == 5


class TestBeforeTheFirstQuorum:
    def test_a_member_that_was_silent_is_not_told_to_leave_what_it_is_in(self) -> None:
        s = Scene(new_job=False, restarted=True, silence=SilenceLimits(alone=1.0))
        s.hello("a:1", quorum=quorum(member("a:1"), member("b:1")), lease_left=50.0)
        s.wait(1.5)
        assert s.record("a:1").lost
        assert not overs(s.heard("a:1"))
        assert not s.record("a:1").lost
