"""The lighthouse machine: who is in a quorum, who is lost, who is told what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.scene import UNIX, Scene, issued, member, notes, of, overs, quorum
from torchft_x.core.fingerprint import LIBRARY, TORCH, Fingerprint, release
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptStarted, GroupRests, SupervisorGone
from torchft_x.core.messages.lighthouse import (
    Closed,
    CloseSession,
    Fence,
    Issue,
    Join,
    Leave,
    Probe,
    Probed,
    Progress,
    Refuse,
    RevokeQuorum,
)
from torchft_x.core.types import AttemptId, JoinReason, State


class TestFirstQuorum:
    def test_a_group_that_was_drained_is_not(self) -> None:
        s = Scene(join_timeout=60.0)
        s.announce("0", "1")
        s.hello("0:x")
        s.feed(GroupRests("7", True))  # of which nobody is here
        assert issued(s.join("0:x")) == []
        assert issued(s.feed(GroupRests("1", True))) == [["0:x"]]
        assert s.announced == {"0"}
        s.feed(GroupRests("1", False))
        assert s.announced == {"0", "1"}
        s.feed(GroupRests("1", True))
        s.feed(SupervisorGone("1", stream=s.supervisors["1"]))
        s.announce("1")  # another supervisor has said nothing of the kind
        assert s.announced == {"0", "1"}
        s = Scene(join_timeout=60.0)
        s.announce("0", "1")
        assert issued(s.arrive("0:x")) == []
        assert issued(s.feed(SupervisorGone("1", stream=s.supervisors["1"]))) == [["0:x"]]


class TestSuccessor:
    def test_a_joiner_is_never_starved_by_fast_quorums(self) -> None:
        s = Scene.started("a:1")
        s.hello("b:1")
        for _ in range(5):  # connected but not asking: nobody waits for it
            assert issued(s.join("a:1", s.committed())) == [["a:1"]]
        s.join("b:1")
        assert issued(s.join("a:1", s.committed())) == [["a:1", "b:1"]]  # asking: the very next one has it


class TestKill:
    def test_the_supervisors_word_is_as_good_and_needs_no_closed_session(self) -> None:
        s = Scene.started("a:1", "b:1")
        effects = s.exited("b:1", -9)
        assert overs(effects) == [((1,), ("b:1",))]
        assert "its process ended with exit code -9" in of(RevokeQuorum, effects)[0].reason
        assert s.feed(Closed(2)) == []  # known already
        assert issued(s.join("a:1", reason=JoinReason.FAILED)) == [["a:1"]]

    def test_those_who_have_asked_are_not_told(self) -> None:
        s = Scene.started("a:1", "b:1", "c:1")
        s.join("a:1", s.committed())
        assert overs(s.kill("c:1")) == [((2,), ("c:1",))]

    def test_all_members_restart(self) -> None:
        s = Scene(min_replicas=2)
        first = s.start("a:1", "b:1")
        s.kill("a:1")
        s.kill("b:1")
        s.hello("a:2", attempt_id=AttemptId(1))
        assert issued(s.join("a:2", reason=JoinReason.NEW)) == []
        s.hello("b:2", attempt_id=AttemptId(1))
        effects = s.join("b:2", reason=JoinReason.NEW)
        assert issued(effects) == [["a:2", "b:2"]]
        assert "new_lineage" in notes(effects)
        assert of(Issue, effects)[0].quorum.top == State(0, 0)
        assert of(Issue, effects)[0].quorum.id > first.id

    def test_an_accepted_probe_proves_nothing_but_a_later_refusal_counts(self) -> None:
        """A dying process may close its listening socket last."""
        s = Scene.started("a:1", "b:1")
        s.close("b:1")
        assert s.feed(Probed("b:1", False)) == []
        s.now = 3.0
        s.feed(Tick())  # a starved lighthouse shifts the last signs of life, and still believes a refusal
        s.join("a:1", s.committed())
        assert s.lighthouse.undecided == "Waiting for members of q1 to ask: b:1."
        assert issued(s.refused("b:1")) == [["a:1"]]


class TestFailedStep:
    def test_a_failed_join_takes_the_others_out_of_the_quorum(self) -> None:
        s = Scene()
        first = s.start("a:1", "b:1", "c:1")
        assert overs(s.join("a:1", reason=JoinReason.FAILED)) == [((2, 3), ())]
        assert of(RevokeQuorum, s.join("b:1", reason=JoinReason.FAILED)) == []  # c knows already
        (issue,) = of(Issue, s.join("c:1", reason=JoinReason.BOUNDARY))
        assert issue.quorum.config_id > first.config_id

    def test_suspects_are_probed_at_once(self) -> None:
        s = Scene.started("a:1", "b:1", "c:1")
        effects = s.join("a:1", reason=JoinReason.FAILED, suspects=("c:1", "nobody:1"))
        assert of(Probe, effects) == [Probe("c:1", "http://c-1")]
        assert overs(s.refused("c:1")) == [((2,), ("c:1",))]

    def test_a_refusal_that_is_contradicted_later_is_no_proof(self) -> None:
        """Its port refused, but its session stands: it is told to ask, and does."""
        s = Scene.started("a:1", "b:1")
        s.join("a:1", reason=JoinReason.FAILED, suspects=("b:1",))
        assert issued(s.refused("b:1")) == [["a:1"]]
        assert len(of(RevokeQuorum, s.heard("b:1"))) == 1
        s.join("b:1", reason=JoinReason.REJOINED)
        assert issued(s.join("a:1", s.committed())) == [["a:1", "b:1"]]

    def test_a_suspect_that_has_spoken_since_the_probe_or_is_back_is_alive(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.join("a:1", reason=JoinReason.FAILED, suspects=("b:1",))
        s.now = 0.01
        s.heard("b:1")
        assert s.refused("b:1") == []
        s = Scene.started("a:1", "b:1")
        s.close("b:1")
        s.hello("b:1")
        assert s.refused("b:1") == []


class TestSilence:
    def test_it_returns_before_the_others_have_asked(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.wait(5.2, alive=("a:1",))
        assert len(of(RevokeQuorum, s.heard("b:1"))) == 1
        s.join("b:1", reason=JoinReason.REJOINED)
        (issue,) = of(Issue, s.join("a:1", reason=JoinReason.FAILED))
        assert len(issue.quorum.members) == 2
        assert issue.quorum.config_id == issue.quorum.id  # a has left the collectives

    def test_a_member_that_was_silent_while_asking_still_asks(self) -> None:
        s = Scene(min_replicas=2)
        s.arrive("a:1")
        s.wait(5.2)
        assert s.lighthouse.undecided == "Nobody who has asked is alive: a:1 (silent for 5 s)."
        assert issued(s.arrive("b:1")) == []
        assert issued(s.heard("a:1")) == [["a:1", "b:1"]]

    def test_a_starved_lighthouse_blames_nobody(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.now = 60.0
        effects = s.feed(Tick())
        assert of(RevokeQuorum, effects) == []
        assert notes(effects) == ["starved"]
        assert overs(s.wait(4.8, alive=("a:1",))) == []
        assert overs(s.wait(0.5, alive=("a:1",))) == [((1,), ("b:1",))]

    def test_a_closed_session_may_come_back_within_the_timeout(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.close("b:1")
        s.wait(4.5, alive=("a:1",))
        assert s.hello("b:1") == [Note("hello", "b:1 is here, at step 0 (quorum 0).", "b:1")]
        assert issued(s.join_all("a:1", "b:1", state=s.committed())) == [["a:1", "b:1"]]


class TestSessions:
    def test_R3_the_replaced_stream_is_closed(self) -> None:
        """L1: the older one's hello may be the one that came late. Its group would wait on a stream nobody listens to."""
        s = Scene()
        s.hello("a:1")
        assert of(CloseSession, s.hello("a:1")) == [CloseSession(1)]
        assert of(CloseSession, s.hello("b:1")) == []
        s.close("a:1")
        assert of(CloseSession, s.hello("a:1")) == []

    def test_who_was_away_when_the_quorum_ended_hears_it_on_return(self) -> None:
        s = Scene()
        first = s.start("a:1", "b:1", "c:1")
        s.close("b:1")
        assert overs(s.kill("c:1")) == [((1,), ("c:1",))]
        (over,) = of(RevokeQuorum, s.hello("b:1"))
        assert (over.sessions, over.quorum_id) == ((4,), first.id)

    def test_a_join_for_somebody_else_is_refused(self) -> None:
        s = Scene()
        s.hello("a:1")
        (refusal,) = of(Refuse, s.feed(Join(1, member("b:1"))))
        assert refusal == Refuse("a:1 has sent a join for b:1; a session speaks for one member.", session=1)

    def test_messages_of_unknown_sessions_are_dropped(self) -> None:
        s = Scene()
        for event in (Join(99, member("a:1")), Progress(99, 1, 1, 1), Leave(99, State()), Closed(99)):
            assert s.feed(event) == []
        assert s.feed(Probed("nobody:1", True)) == []

    @pytest.mark.parametrize("breaks", [False, True])
    def test_R3_the_newest_session_replaces_the_older_and_its_join(self, breaks: bool) -> None:
        s = Scene(min_replicas=2)
        s.arrive("a:1")
        if breaks:
            s.close("a:1")
        s.hello("a:1")
        assert s.feed(Closed(1)) == []  # of nobody any more
        assert issued(s.arrive("b:1")) == []
        assert issued(s.join("a:1")) == [["a:1", "b:1"]]


class TestLeave:
    def test_those_who_wait_for_it_wait_no_longer(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.join("a:1", s.committed())
        assert issued(s.leave("b:1", s.committed())) == [["a:1"]]
        s = Scene(join_timeout=60.0)
        for name in ("a:1", "b:1", "c:1"):
            s.hello(name)
        s.join_all("a:1", "b:1")
        assert issued(s.close("c:1")) == [["a:1", "b:1"]]  # nor if its session breaks before the first quorum

    def test_the_last_step_is_known_when_all_have_left(self) -> None:
        s = Scene.started("a:1", "b:1")
        last = State(500, s.lighthouse.current.id)
        s.leave("a:1", last)
        s.leave("b:1", last)
        assert s.lighthouse.reached == 500


class TestAttempts:
    """R2: one attempt per group."""

    def test_the_number_that_was_told_is_not_fenced_and_an_older_attempt_does_not_lower_it(self) -> None:
        s = Scene()  # a lighthouse after another one, which the members come back to in any order
        s.hello("g_0:new", attempt_id=AttemptId(7, 9.0))
        assert of(Fence, s.hello("g_0:old", attempt_id=AttemptId(3, 1.0))) == [Fence("g_0:new", 2)]
        s.feed(AttemptStarted("0", 3, ""))
        assert s.lighthouse.next_attempt("0") == 8
        fenced = of(Fence, s.hello("g_0:next", attempt_id=AttemptId(8, 0.0)))  # whatever its host's clock
        assert fenced == [Fence("g_0:next", 1)]
        assert s.feed(Closed(1)) == []  # known already

    def test_R9b_a_lighthouse_that_does_not_know_its_own_boot_believes_no_refusal(self) -> None:
        s = Scene(boot_id="")
        s.hello("a:1", boot_id="")
        s.join("a:1")
        s.kill("a:1")
        s.hello("a:2", attempt_id=AttemptId(1))
        assert issued(s.join("a:2")) == []

    def test_R9b_the_lease_counts_from_the_last_quorum(self) -> None:
        s = Scene(lease=20.0)
        s.hello("a:1", boot_id="elsewhere")
        s.join("a:1")
        s.wait(10.0, alive=("a:1",))
        s.join("a:1", s.committed())
        s.close("a:1")
        s.hello("a:2", attempt_id=AttemptId(1))
        s.join("a:2")
        assert issued(s.wait(20.9, alive=("a:2",))) == []
        assert issued(s.wait(0.3, alive=("a:2",))) == [["a:2"]]

    def test_an_attempt_that_ended_can_not_come_back(self) -> None:
        s = Scene.started("a:1", "b:1")
        s.exited("b:1")
        (refusal,) = s.hello("b:1")
        assert "this process ended" in refusal.sentence


class TestPeersClients:
    """The unary service: the peer's rules."""

    def test_two_calls_of_one_client_are_both_answered(self) -> None:
        s = Scene(min_replicas=2)
        s.unary("a", 1)
        s.unary("a", 2)
        (issue,) = of(Issue, s.unary("b", 3))
        assert issue.calls == (1, 2, 3)
        s.hello("c:1")
        (refusal,) = s.unary("c:1", 5)  # a name of a session is taken
        assert refusal.call == 5

    def test_without_heartbeats_it_is_no_candidate(self) -> None:
        s = Scene(min_replicas=2)
        s.unary("a", 1)
        s.wait(5.2)
        assert issued(s.unary("b", 2)) == []
        s.beat("a")
        assert issued(s.feed(Tick())) == []  # formed by the beat itself
        assert s.lighthouse.current is not None

    def test_all_new_after_all_are_silent(self) -> None:
        s = Scene()
        s.unary("a", 1)
        s.wait(5.2)
        effects = s.unary("b", 2)
        assert issued(effects) == [["b"]]
        assert "new_lineage" in notes(effects)

    def test_shrink_only_leaves_newcomers_waiting(self) -> None:
        s = Scene()
        s.beat("a", "b")
        s.unary("a", 1)
        s.unary("b", 2)
        s.unary("c", 3)
        s.unary("b", 4, step=1)
        (issue,) = of(Issue, s.unary("a", 5, step=1, shrink_only=True))
        assert issue.calls == (5, 4)
        s.unary("b", 6, step=2)
        assert issued(s.unary("a", 7, step=2)) == [["a", "b", "c"]]

    def test_healthy_ones_that_do_not_ask_are_forgotten_in_time(self) -> None:
        s = Scene(join_timeout=60.0)
        s.beat("x", "y", "z")
        s.unary("a", 1)
        assert issued(s.wait(5.2, alive=("a",))) == [["a"]]
        assert s.lighthouse.status(s.now)["members"] == ["a"]


class TestTakeover:
    """R8: a lighthouse that has lost its memory."""

    def restarted(self, **config: Any) -> Scene:
        """Of {a, b}, both in quorum 7 of an earlier attempt."""
        s = Scene(now=500.0, **config)
        old = quorum(member("a:1"), member("b:1"), number=40)
        s.quorums = {"a:1": old, "b:1": old}
        return s

    def test_a_report_of_an_older_quorum_is_told_to_ask(self) -> None:
        s = self.restarted()
        s.quorums["c:1"] = quorum(member("a:1"), member("b:1"), member("c:1"), id=6)
        s.hello("c:1")
        s.hello("a:1")
        (over,) = of(RevokeQuorum, s.hello("b:1"))
        assert (over.sessions, over.quorum_id) == ((1,), 6)

    def test_a_death_between_report_and_adoption_is_told(self) -> None:
        s = self.restarted()
        s.hello("a:1")
        s.kill("a:1")
        assert overs(s.hello("b:1")) == [((2,), ("a:1",))]
        assert issued(s.join("b:1", reason=JoinReason.FAILED)) == [["b:1"]]

    def test_what_it_has_issued_itself_it_does_not_forget_whatever_is_said(self) -> None:
        s = Scene()
        q = s.start("a:1", "b:1")
        s.hello("c:1", quorum=quorum(member("c:1"), member("d:1"), id=q.id + 5000))
        assert s.lighthouse.current == q

    def test_a_report_within_the_grace_is_heeded(self) -> None:
        s = self.restarted(new_job=False)
        s.arrive("new:1")
        s.wait(0.5, alive=("new:1",))
        s.hello("a:1")
        assert issued(s.wait(2.0, alive=("new:1", "a:1"))) == []
        s.hello("b:1")
        s.join("a:1", State(1, 7))
        assert issued(s.join("b:1", State(1, 7))) == [["a:1", "b:1", "new:1"]]

    def test_who_has_received_the_last_quorum_is_told_that_others_have_not(self) -> None:
        """The lighthouse died while sending quorum 8: a stands in its first reduction, b and c wait for a quorum."""
        names = ("a:1", "b:1", "c:1", "d:1")
        before = quorum(*(member(n) for n in names[:3]), id=7, number=40)
        sent = quorum(*(member(n) for n in names), id=8, number=41)
        s = Scene(restarted=True)
        s.hello("a:1", quorum=sent, lease_left=90.0)
        s.hello("b:1", quorum=before, lease_left=90.0)
        assert s.lighthouse.current is None
        s.hello("c:1", quorum=before, lease_left=90.0)
        assert notes(s.join("c:1", State(1, 7))) == ["joined"]
        effects = s.hello("d:1")
        assert "adopted" in notes(effects)
        ends = [(e.quorum_id, e.sessions) for e in of(RevokeQuorum, effects)]
        assert (8, (1,)) in ends
        assert len([q for q, _ in ends if q == 8]) == 1
        s.join("b:1", State(1, 7))
        s.join("d:1")
        (issue,) = of(Issue, s.join("a:1", State(1, 7), reason=JoinReason.FAILED))
        assert [m.replica_id for m in issue.quorum.members] == [*names]
        assert issue.quorum.config_id == issue.quorum.id  # its process group is rebuilt

    def test_the_lease_of_an_adopted_quorum_counts_from_the_start(self) -> None:
        s = Scene(lease=20.0)
        s.hello("a:1", boot_id="elsewhere", quorum=quorum(member("a:1"), lease=30.0), lease_left=25.0)
        s.close("a:1")
        s.arrive("b:1")
        assert issued(s.wait(30.9, alive=("b:1",))) == []
        assert issued(s.wait(0.3, alive=("b:1",))) == [["b:1"]]

    @pytest.mark.parametrize("told", ["reported", "committed in"])
    def test_R1_new_ids_are_above_all_reported(self, told: str) -> None:
        s = Scene()
        high = int(UNIX * 1000) << 12
        if told == "reported":
            s.hello("a:1", quorum=quorum(member("a:1"), id=high), lease_left=5.0)
        else:
            s.hello("a:1")
        (issue,) = of(Issue, s.join("a:1", State(1, high)))
        assert issue.quorum.id == high + 1


TRAINER = Fingerprint((release(LIBRARY, "0.1.0"), release(TORCH, "2.13.0")))


class TestAcrossLibraries:
    """torchft's clients and members of ours are never in one quorum."""

    @pytest.mark.parametrize("traits", [TRAINER, None])  # None: its ranks declare nothing
    def test_ours_is_refused_where_peers_train_whatever_it_holds(self, traits: Fingerprint | None) -> None:
        s = Scene(join_timeout=0.0)
        assert issued(s.unary("p:1", 1)) == [["p:1"]]
        (refusal,) = of(Refuse, s.arrive("a:1", traits=traits))
        assert refusal.session == s.sessions["a:1"]
        assert refusal.sentence == (
            "Group a (host a-1) runs torchft_x and can't train with group p (host p-1), which runs torchft; run all "
            "groups on one library."
        )
        assert issued(s.unary("p:1", 2, step=1)) == [["p:1"]]

    @pytest.mark.parametrize("traits", [TRAINER, None])
    def test_a_peers_client_is_refused_where_ours_train(self, traits: Fingerprint | None) -> None:
        s = Scene(join_timeout=0.0)
        assert issued(s.arrive("a:1", traits=traits)) == [["a:1"]]
        (refusal,) = of(Refuse, s.unary("p:1", 1))
        assert refusal.call == 1
        assert refusal.sentence.startswith("Group p (host p-1) runs torchft and can't train with group a (host a-1)")
        for _ in range(3):  # its server still beats: nobody waits for it, nor forgets that it was refused
            s.beat("p:1")
            s.feed(Tick())
        assert [m.lost for m in s.lighthouse.view(s.now).members] == ["", "it was refused"]
        s.arrive("b:1", traits=TRAINER)  # declares more, and nothing else
        assert issued(s.join("a:1", s.committed())) == [["a:1", "b:1"]]
        assert [r.call for r in of(Refuse, s.unary("p:1", 2))] == [2]  # it tries again

    def test_before_anybody_trains_who_came_first_counts(self) -> None:
        s = Scene(min_replicas=2, join_timeout=0.0)
        s.unary("p:1", 1)
        s.now = 1.0
        assert len(of(Refuse, s.arrive("a:1"))) == 1
        assert issued(s.unary("p:2", 2)) == [["p:1", "p:2"]]


class TestOthersTrain:
    """Whether a newcomer may make its first step before it asks."""

    def test_while_others_train_and_not_for_these(self) -> None:
        s = Scene(new_job=True)
        s.hello("a:1")
        assert not s.lighthouse.others_train("a:1")  # there is no quorum
        s = Scene.started("a:1", "b:1", new_job=True)
        s.hello("c:1")
        assert s.lighthouse.others_train("c:1")
        assert not s.lighthouse.others_train("a:1")
        s.kill("a:1")
        s.hello("b:2", attempt_id=AttemptId(1))
        assert not s.lighthouse.others_train("b:2")  # its older attempt does not count
        s = Scene.started("a:1", "b:1", new_job=True, min_replicas=2)
        s.hello("b:2", attempt_id=AttemptId(1))
        assert not s.lighthouse.others_train("b:2")  # the others wait for it
