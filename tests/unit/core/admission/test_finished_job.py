"""R21: who finishes a job, and who comes too late for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.scene import Scene, issued, notes, of, overs
from torchft_x.core.journal import Departure, JournalEntry
from torchft_x.core.messages.job import AttemptStarted, SupervisorGone, SupervisorHere, TellStop
from torchft_x.core.messages.lighthouse import (
    Keep,
    Leave,
    LighthouseEffect,
    LighthouseEvent,
    Probe,
    Probed,
    Refuse,
    RevokeQuorum,
    SendWaits,
    SupervisorHeard,
)
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.timing import TIMING

LINGERS = "http://a:7777"


class Job(Scene):
    """Groups a, b, c under supervisors (streams 1, 2, 3), or without."""

    def __init__(self, *, supervised: bool = True, **config: Any) -> None:
        super().__init__(lease=20.0, join_timeout=0.0, **config)
        self.supervised = supervised
        self.streams = {"a": 101, "b": 102, "c": 103}

    def feed(self, event: LighthouseEvent) -> list[LighthouseEffect]:
        """A supervisor comes before the first attempt that it tells of."""
        if isinstance(event, AttemptStarted) and event.group not in self.lighthouse._members.supervisors.groups:
            super().feed(SupervisorHere(event.group, "host", stream=self.streams[event.group]))
        return super().feed(event)

    def hello(self, replica_id: str, **fields: Any) -> list[LighthouseEffect]:
        """An attempt; an explicit number makes it newer."""
        group, number = replica_id.split(":")
        token = f"token-{replica_id}" if self.supervised else ""
        if self.supervised:
            self.feed(AttemptStarted(group, int(number), token, self.streams[group]))
        return super().hello(replica_id, **{"attempt_id": AttemptId(int(number), 0.0, token), **fields})

    def finish(self, replica_id: str, **fields: Any) -> list[LighthouseEffect]:
        """It leaves at the end of the training."""
        lingers = {} if self.supervised else {"lingers": LINGERS}
        return self.feed(Leave(self.sessions[replica_id], self.committed(), **{**lingers, **fields}))

    def end(self, replica_id: str, code: int | None = None) -> None:
        """Its connection breaks, and its supervisor reports the exit code if one is given."""
        self.close(replica_id)
        del self.sessions[replica_id]
        if code is not None:
            self.exited(replica_id, code)

    def late(self, replica_id: str = "b:2") -> list[LighthouseEffect]:
        """It comes, with nothing, and asks."""
        self.hello(replica_id)
        return self.join(replica_id)

    def pass_(self, seconds: float) -> list[LighthouseEffect]:
        """Time passes; supervisors and whoever has a session are heard."""
        effects: list[LighthouseEffect] = []
        end = self.now + seconds
        while self.now < end - 1e-6:
            for stream in self.streams.values() if self.supervised else ():
                effects += self.feed(SupervisorHeard(stream))
            effects += self.wait(min(1.0, end - self.now), alive=tuple(self.sessions))
        return effects


def finishing(**config: Any) -> Job:
    """a and b train, b is killed, a goes on alone and leaves at the end."""
    s = Job.started("a:1", "b:1", **config)
    s.kill("b:1")
    if s.supervised:
        s.exited("b:1", -9)
    assert issued(s.join("a:1", s.committed())) == [["a:1"]]
    s.finish("a:1")
    s.close("a:1")
    del s.sessions["a:1"], s.sessions["b:1"]
    return s


def cut_off_while_a_finishes(s: Job) -> State:
    """a and b train, b is cut off, a finishes and ends well, b is there again. Returns the state that b stands at."""
    s.start("a:1", "b:1")
    s.close("b:1")
    s.pass_(60.0)  # b is cut off, and lost
    at = s.committed()
    assert issued(s.join("a:1", at)) == [["a:1"]]
    s.finish("a:1")
    s.end("a:1", 0)
    s.hello("b:1")
    return at


def stopped(effects: list[LighthouseEffect]) -> set[str]:
    return {e.group for e in of(TellStop, effects)}


def refusals(effects: list[LighthouseEffect]) -> list[int | None]:
    return [e.session for e in of(Refuse, effects)]


def test_while_the_process_of_who_has_left_runs_nobody_begins_anew() -> None:
    s = finishing()
    # Seed 7358493499289 of the soak: a probe from before the leave was answered after it, without an address.
    s.feed(Probed("a:1", True))
    assert issued(s.late()) == []
    effects = s.pass_(100.0)  # longer than the lease
    assert issued(effects) == []
    assert s.lighthouse.undecided == (
        "a:1 left at the end of the training, and its process still runs: nobody trains the job again before it is known "
        "how that ends."
    )
    told = of(SendWaits, effects)
    assert len(told) >= 99
    assert {(e.sessions, e.pauses) for e in told} == {((s.sessions["b:2"],), True)}  # no limit of a user ends the wait
    effects = s.exited("a:1", 1)  # it fails: R9 decides alone
    assert issued(effects) == [["b:2"]]
    assert "new_lineage" in notes(effects)


def test_when_it_has_ended_well_the_late_group_is_stopped() -> None:
    s = finishing()
    s.late()
    s.pass_(TIMING.finish_grace)
    assert issued(s.exited("a:1", 0)) == []
    effects = s.pass_(2.0)
    assert [e.group for e in of(TellStop, effects)][:1] == ["b"]
    assert issued(effects) == []
    assert refusals(effects) == []


def test_who_trains_on_alone_is_stopped_if_too_few_are_left() -> None:
    """The script of one group has ended early, with 0: the others waited for 60 s in each attempt, for nobody."""
    s = Job.started("a:1", "b:1", min_replicas=2)
    s.finish("a:1")
    at = s.committed()
    effects = s.join("b:1", at)
    assert stopped(effects + s.pass_(3.0)) == set()  # a's process still runs, and may fail
    s.end("a:1", 0)
    effects = s.pass_(TIMING.finish_grace + 2.0)
    assert stopped(effects) == {"b"}
    sentence = s.lighthouse.undecided
    assert sentence.startswith("a:1 has ended well, at step")
    assert "min_replicas is 2" in sentence


def test_groups_that_have_all_ended_begin_another_job_one_after_the_other() -> None:
    s = Job.started("a:1", "b:1", min_replicas=2)
    for name in ("a:1", "b:1"):
        s.finish(name)
        s.end(name, 0)
    s.late("a:2")
    assert stopped(s.pass_(10.0)) == set()
    assert issued(s.late("b:2")) == [["a:2", "b:2"]]


def test_an_earlier_attempt_of_a_group_that_trains_on_has_not_finished_the_job() -> None:
    """Seed 7354042634876 of the soak: its end with 0, without a leave, was heard when a later one trained already."""
    s = Job.started("a:1", "b:1", keeps=True)
    at = s.committed()
    s.arrive("b:2")
    keep = of(Keep, s.join("a:1", at))[-1]
    assert keep.entry.quorum.member("b:2") is not None
    s.exited("b:1", 0)
    assert s.lighthouse._finished_job.departures == ()
    t = Job(now=5000.0, previous=keep.entry, keeps=True)  # the next lighthouse hears it as soon
    t.exited("b:1", 0)
    assert t.lighthouse._finished_job.departures == ()


def test_who_gives_up_sooner_is_stopped_in_a_later_attempt() -> None:
    """Seed 30102 of the swarm: each attempt asked anew, and gave up before it was told."""
    s = finishing()
    s.exited("a:1", 0)
    stopped: list[str] = []
    for number in range(2, 8):
        name = f"b:{number}"
        stopped += [e.group for e in of(TellStop, s.late(name) + s.pass_(TIMING.finish_grace / 4))]
        s.end(name, 1)
    assert set(stopped) == {"b"}


@pytest.mark.parametrize("leaves", [False, True])
def test_who_was_stopped_has_not_finished_the_job(leaves: bool) -> None:
    """Seed 7358414483915 of the soak: the process of a member ended with 0 when it was stopped, and its next attempt
    began a new lineage."""
    s = Job()
    at = cut_off_while_a_finishes(s)
    effects = s.join("b:1", at, JoinReason.REJOINED) + s.pass_(TIMING.finish_grace + 1.0)
    assert (issued(effects), stopped(effects)) == ([], {"b"})
    if leaves:  # as a script does that ends in good order when it is told to stop
        s.feed(Leave(s.sessions["b:1"], at))
    s.end("b:1", 0)
    effects = s.late("b:2") + s.pass_(2.0)
    assert (issued(effects), stopped(effects)) == ([], {"b"})


def test_a_refusal_from_another_host_says_that_it_is_at_its_end_though_it_proves_nothing() -> None:
    """Seed 1110000777 of a hunt: where groups run on other hosts than the lighthouse a lost leave was not noticed."""
    s = Job.started("b:1")
    s.hello("a:1", boot_id="another host")
    s.join("a:1")
    assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1"]]
    s.leave("b:1", s.committed())
    s.exited("b:1", 1)
    s.kill("a:1")
    del s.sessions["a:1"], s.sessions["b:1"]
    assert issued(s.late() + s.pass_(200.0)) == []  # longer than its lease
    assert s.lighthouse.undecided.startswith("a:1 is gone, and its process still runs:")
    assert issued(s.exited("a:1", 1)) == [["b:2"]]


def gone_in_an_older_quorum(kept: list[JournalEntry] | None = None, **config: Any) -> Job:
    """a finishes, its leave is lost, and its supervisor is cut off. b trains on alone, and ends with an error."""
    s = Job.started("a:1", "b:1", min_replicas=1, **config)
    at = s.committed()
    s.kill("a:1")
    for _ in range(2):  # two quorums alone: a is in neither
        effects = s.join("b:1", at, JoinReason.FAILED)
        assert issued(effects) == [["b:1"]]
        if kept is not None:
            kept += [e.entry for e in of(Keep, effects)]
    s.wait(2.0, alive=("b:1",))
    s.kill("b:1")
    s.exited("b:1", 1)
    del s.sessions["a:1"], s.sessions["b:1"]
    return s


def test_who_is_told_of_no_more_is_asked_no_more() -> None:
    s = Job.started("a:1", "b:1", min_replicas=1)
    s.kill("a:1")
    s.join("b:1", s.committed())
    s.streams = {"b": 102}
    assert {p.replica_id for p in of(Probe, s.wait(20.0, alive=("b:1",)))} <= {"a:1"}
    assert s.lighthouse._finished_job.unreported == {"a:1"}
    s.feed(SupervisorGone("a", stream=101))
    s.wait(23.0, alive=("b:1",))  # a lease and its margin
    assert s.lighthouse._finished_job.unreported == frozenset()
    assert of(Probe, s.wait(5.0, alive=("b:1",))) == []


def test_the_next_lighthouse_knows_who_may_yet_finish_the_job() -> None:
    """R21, seed 7358448554294: a group that finishes was in an older quorum than the newest; the next lighthouse must
    know of it, too."""
    kept: list[JournalEntry] = []
    gone_in_an_older_quorum(kept, keeps=True)
    assert [entry.replica_id for entry in kept[-1].members] == ["b:1", "a:1"]
    t = Job(now=5000.0, previous=kept[-1], keeps=True)
    t.feed(AttemptStarted("a", 1, "token-a:1"))
    t.exited("b:1", 1)
    assert issued(t.late() + t.pass_(100.0)) == []
    assert issued(t.exited("a:1", 0)) == []
    assert issued(t.pass_(2.0)) == []
    assert [d.ended for d in t.lighthouse._finished_job.departures] == [True]


def test_a_process_that_finishes_is_waited_for_also_if_its_group_was_started_on_another_host() -> None:
    """Seed 7354408059622 of the soak: once the group had a newer attempt, nobody's report of the old one counted."""
    s = finishing()
    s.late()
    s.streams["new a"] = 104
    s.feed(SupervisorHere("a", "another host", stream=104))
    s.feed(AttemptStarted("a", 2, "token-a:2", 104))
    assert issued(s.pass_(100.0)) == []
    del s.streams["a"]  # its host is lost now
    assert issued(s.pass_(15.0)) == []
    assert issued(s.pass_(10.0)) == [["b:2"]]  # after a lease


def test_who_asks_much_later_is_held_anew() -> None:
    s = finishing()
    s.exited("a:1", 0)
    s.late()
    s.pass_(TIMING.finish_grace - 1.0)
    s.end("b:2", 1)
    s.pass_(100.0)
    assert of(TellStop, s.late("b:3") + s.pass_(TIMING.finish_grace - 1.0)) == []


def test_without_a_leave_that_arrived_an_end_with_0_is_one() -> None:
    s = Job.started("a:1")
    s.exited("a:1", 0)
    assert issued(s.late("a:2")) == [["a:2"]]  # the same group may begin another job
    s = finishing()
    s.exited("a:1", 0)
    assert issued(s.late()) == []


def test_who_was_preempted_finishes_nothing_after_a_new_lineage_either() -> None:
    """Its process ends with 0 only then."""
    s = Job.started("a:1", "b:1", min_replicas=1)
    s.finish("a:1", early=True)
    s.close("a:1")
    assert issued(s.join("b:1", s.committed(), JoinReason.FAILED)) == [["b:1"]]
    s.kill("b:1")
    s.exited("b:1", -9)
    assert issued(s.late("b:2")) == [["b:2"]]
    s.arrive("c:1")
    assert issued(s.join("b:2", s.committed())) == [["b:2", "c:1"]]
    s.exited("a:1", 0)
    assert s.lighthouse._finished_job.departures == ()


def test_all_that_finish_it_count() -> None:
    s = Job.started("a:1", "b:1", "c:1")
    s.kill("b:1")
    s.exited("b:1")
    s.join("a:1", s.committed())
    s.join("c:1", s.committed())
    for name in ("a:1", "c:1"):
        s.finish(name)
        del s.sessions[name]
    s.late()
    assert issued(s.exited("a:1", 1)) == []  # c may yet save the model
    assert issued(s.exited("c:1", 0)) == []
    assert issued(s.late("a:2")) == []  # what failed to finish it comes late, too


def test_who_comes_back_trains_on() -> None:
    """Two Managers in one process, or a group that was preempted and didn't say so."""
    s = Job.started("a:1", "b:1")
    state = s.committed()
    s.finish("a:1")
    s.arrive("a:2", state)
    assert issued(s.join("b:1", state)) == [["a:2", "b:1"]]
    assert s.lighthouse._finished_job.departures == ()


class TestWithoutSupervisors:
    def test_it_is_held_a_moment_for_who_begins_another_job(self) -> None:
        s = self.ended()
        s.late()
        assert refusals(s.pass_(TIMING.finish_grace - 1.0)) == []
        assert issued(s.arrive("a:2")) == [["a:2", "b:2"]]
        assert issued(self.ended().late("d:1")) == [["d:1"]]  # it was never in that job
        s = self.ended()
        assert issued(s.late("a:2")) == [["a:2"]]
        assert s.lighthouse._finished_job.departures == ()  # the next job forgets it

    def ended(self) -> Job:
        """Return a job whose last process has ended, as its socket says."""
        s = finishing(supervised=False)
        s.feed(Probed("a:1", True, LINGERS))
        return s

    @pytest.mark.parametrize("address", [LINGERS, "http://elsewhere:1"])
    def test_a_socket_says_that_the_process_runs_and_its_refusal_ends_the_job(self, address: str) -> None:
        s = finishing(supervised=False)
        s.late()
        effects = s.pass_(60.0)
        assert issued(effects) == []
        assert Probe("a:1", LINGERS) in effects
        assert not any(e.pauses for e in of(SendWaits, effects))  # whoever waits has a deadline
        s.feed(Probed("a:1", True, address))
        effects = s.pass_(2.0)
        assert issued(effects) == []
        assert bool(refusals(effects)) is (address == LINGERS)  # that of the group server's says nothing


def test_the_next_lighthouse_knows_it() -> None:
    s = Job.started("a:1", keeps=True)
    state = s.committed()
    (keep,) = of(Keep, s.finish("a:1"))
    assert keep.entry.left == (Departure("a:1", AttemptId(1, 0.0, "token-a:1"), state),)
    s.wait(0.1)
    assert of(Keep, s.wait(0.5)) == []  # once
    t = Job(now=5000.0, previous=keep.entry, keeps=True)
    t.feed(AttemptStarted("a", 1, "token-a:1"))
    assert issued(t.late()) == []
    assert issued(t.pass_(100.0)) == []
    assert issued(t.exited("a:1", 1)) == [["b:2"]]


def test_the_next_lighthouse_knows_who_was_in_the_job() -> None:
    """Seed 84 of the swarm: the late group was told that the job is finished, the lighthouse was started again, and it began
    the job anew."""
    s = finishing(keeps=True)  # the newest quorum does not name b
    (keep,) = of(Keep, s.exited("a:1", 0))
    assert keep.entry.job == ("a", "b")
    t = Job(now=5000.0, previous=keep.entry, keeps=True)
    assert issued(t.late()) == []
    assert stopped(t.pass_(TIMING.finish_grace + 2.0)) == {"b"}


def test_the_next_lighthouse_waits_for_the_word_of_supervisors() -> None:
    """Seed 7354172782558 of the soak: a finished while no lighthouse was there; the next one heard from b, and found that
    a's address refuses connections, before a's supervisor could say how a had ended."""
    s = Job.started("a:1", "b:1", keeps=True)
    s.kill("b:1")
    s.exited("b:1")
    (keep,) = of(Keep, s.join("a:1", s.committed()))
    for told in (True, False):
        t = Job(now=5000.0, previous=keep.entry, keeps=True)
        t.wait(0.2)
        t.refused("a:1")
        assert issued(t.late()) == []
        if told:
            assert issued(t.exited("a:1", 0)) == []
            assert stopped(t.pass_(TIMING.finish_grace + 2.0)) == {"b"}
        else:
            assert issued(t.pass_(19.0)) == []
            assert issued(t.pass_(3.0)) == [["b:2"]]  # its host is lost: a lease and its margin after the take-over


def test_the_next_lighthouse_waits_for_nobody_whose_end_was_reported() -> None:
    """L3: b dies together with its supervisor; the next supervisor reports the end while a trains on."""
    s = Job.started("a:1", "b:1", keeps=True)
    s.kill("b:1")
    s.feed(SupervisorGone("b", stream=s.streams.pop("b")))
    for _ in range(2):  # b is in no open quorum any more
        assert issued(s.join("a:1", s.committed())) == [["a:1"]]
    s.streams["b"] = 202
    s.feed(SupervisorHere("b", "host", stream=202))
    keeps = of(Keep, s.exited("b:1") + s.pass_(2.0))
    assert [entry.replica_id for entry in keeps[-1].entry.members] == ["a:1"]
    t = Job(now=5000.0, previous=keeps[-1].entry, keeps=True)
    t.pass_(0.3)
    t.refused("a:1")
    t.hello("a:2")
    t.exited("a:1")
    t.hello("b:3")
    assert issued(t.join("b:3") + t.join("a:2")) != []


def test_the_next_lighthouse_knows_who_was_stopped() -> None:
    """Seed 7354336129690 of the soak: b's supervisor told the next lighthouse, too, that b had ended with 0, which was taken
    for the end of the job, so b's next attempt could begin another one."""
    s = Job(keeps=True)
    at = cut_off_while_a_finishes(s)
    effects = s.join("b:1", at, JoinReason.REJOINED) + s.pass_(TIMING.finish_grace + 1.0)
    assert stopped(effects) == {"b"}
    t = Job(now=5000.0, previous=of(Keep, effects)[-1].entry, keeps=True)
    for replica_id in ("a:1", "b:1"):
        t.exited(replica_id, 0)
    effects = t.late("b:2") + t.pass_(TIMING.finish_grace + 2.0)
    assert (issued(effects), stopped(effects)) == ([], {"b"})


def test_the_next_lighthouse_knows_who_was_preempted() -> None:
    """A preempted group leaves early and ends with 0; the next lighthouse took that for an end of the job."""
    s = Job.started("a:1", keeps=True)
    (keep,) = of(Keep, s.finish("a:1", early=True))
    assert issued(s.late()) == [["b:2"]]  # it holds nobody up
    t = Job(now=5000.0, previous=keep.entry, keeps=True)
    t.exited("a:1", 0)
    assert issued(t.late()) == [["b:2"]]


def test_who_was_in_a_lineage_that_was_lost_was_in_the_job() -> None:
    """b trains alone and is killed, a begins anew and finishes; b comes back."""
    s = Job.started("b:1")
    s.kill("b:1")
    s.exited("b:1", -9)
    assert issued(s.arrive("a:1")) == [["a:1"]]
    s.finish("a:1")
    s.exited("a:1", 0)
    assert issued(s.late()) == []
    assert stopped(s.pass_(TIMING.finish_grace + 2.0)) == {"b"}


def test_a_lighthouse_that_adopts_a_quorum_knows_who_is_in_the_job() -> None:
    """It has nothing that was written down; b is gone when it issues its first quorum."""
    s = Job.started("a:1", "b:1")
    at, quorum = s.committed(), s.lighthouse.current
    t = Job(now=5000.0, new_job=False, restarted=True)
    for name in ("a:1", "b:1"):
        t.hello(name, quorum=quorum, lease_left=10.0, state=at)
    t.wait(0.1, alive=("a:1", "b:1"))
    assert t.lighthouse.current is quorum
    t.exited("b:1", 1)
    t.join("a:1", at)
    t.finish("a:1")
    t.exited("a:1", 0)
    assert issued(t.late()) == []


def test_a_later_attempt_of_a_group_that_has_left_has_not_finished_the_job() -> None:
    """Seed 5022 of the swarm: b's process failed after it had left, and its supervisor could not say so at once."""
    s = Job.started("a:1", "b:1")
    for name in ("a:1", "b:1"):
        s.finish(name)
        s.end(name)
    s.exited("a:1", 0)
    assert issued(s.late()) == []
    assert issued(s.exited("b:1", 1)) == []
    assert stopped(s.pass_(TIMING.finish_grace + 2.0)) == {"b"}


def test_another_training_in_the_same_process() -> None:
    s = finishing()
    s.hello("a:2", attempt_id=AttemptId(2, 0.0, "token-a:1"))
    assert issued(s.join("a:2")) == [["a:2"]]


def test_an_attempt_that_was_never_a_member_finishes_nothing() -> None:
    s = Job.started("a:1")
    s.hello("b:1")
    s.exited("b:1", 0)
    del s.sessions["b:1"]
    s.exited("a:1", -9)
    del s.sessions["a:1"]
    assert issued(s.late("a:2")) == [["a:2"]]


def test_only_a_process_without_a_supervisor_is_looked_at_and_until_it_has_ended() -> None:
    assert of(Probe, finishing().wait(5.0)) == []
    s = finishing(supervised=False)
    assert of(Probe, s.wait(1.5)) == [Probe("a:1", LINGERS)]
    s.feed(Probed("a:1", True, LINGERS))
    assert of(Probe, s.wait(5.0)) == []


def test_the_others_hear_that_it_has_left() -> None:
    s = Job.started("a:1", "b:1")
    (over,) = of(RevokeQuorum, s.feed(Leave(s.sessions["b:1"], State())))
    assert over.left
    assert overs([over]) == [((1,), ("b:1",))]
    s = Job.started("a:1", "b:1")
    (over,) = of(RevokeQuorum, s.kill("b:1"))
    assert not over.left


def test_who_was_in_an_older_quorum_may_finish_the_job_and_holds_nobody_up_if_it_fails() -> None:
    """Seed 7358448554294 of the soak: only members of the newest quorum were asked for, and the job was begun anew."""
    s = gone_in_an_older_quorum()
    assert issued(s.late() + s.pass_(30.0)) == []
    assert issued(s.exited("a:1", 0)) == []
    effects = s.pass_(TIMING.finish_grace + 2.0)
    assert (issued(effects), stopped(effects)) == ([], {"b"})
    s = gone_in_an_older_quorum()
    assert issued(s.late()) == []
    assert issued(s.exited("a:1", -9)) == [["b:2"]]


@pytest.mark.parametrize("story", ["has asked", "asks then", "no leave arrived"])
def test_the_last_word_of_a_supervisor_counts_though_nobody_asked_then(story: str) -> None:
    if story == "no leave arrived":  # it was cut off with its supervisor, which may yet say that it has ended well
        s = Job.started("a:1")
        s.kill("a:1")
        s.pass_(3.0)
        del s.sessions["a:1"]
    else:
        s = finishing()
        s.pass_(100.0 if story == "asks then" else 0.0)
    if story == "has asked":
        s.late()
    s.feed(SupervisorGone("a", stream=s.streams.pop("a")))
    if story != "has asked":
        assert issued(s.late()) == []
    assert issued(s.pass_(15.0)) == []
    assert issued(s.pass_(10.0)) == [["b:2"]]
