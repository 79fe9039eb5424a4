"""R8(c): a lighthouse that finds what the one before has written down goes on as if only the sessions had broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.scene import BOOT, UNIX, Scene, issued, member, of, quorum
from torchft_x.core.journal import Absent, JournalEntry
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptExited, AttemptStarted
from torchft_x.core.messages.lighthouse import (
    Fence,
    Hello,
    Issue,
    Keep,
    LighthouseEffect,
    LighthouseEvent,
    Probe,
    Progress,
    Refuse,
    RevokeQuorum,
    SupervisorHeard,
)
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.timing import TIMING


def kept(scene: Scene) -> JournalEntry:
    """What the present lighthouse has written down last."""
    lighthouse = scene.lighthouse
    lighthouse._journal_writer._kept = None
    (keep,) = of(Keep, lighthouse.handle(Tick(), scene.now))
    return keep.entry


def trained(*replica_ids: str, steps: int = 1) -> Scene:
    scene = Scene.started(*replica_ids, keeps=True)
    for step in range(1, steps):
        scene.join_all(*replica_ids, state=State(step, scene.lighthouse.current.id))
    return scene


def follow(before: Scene, previous: JournalEntry | None, **config: object) -> Scene:
    """The next lighthouse, a second later. Everybody holds what it was sent."""
    settings = {"keeps": True, "new_job": False, "restarted": True, "previous": previous, **config}
    scene = Scene(now=before.now + 1.0, unix=UNIX + before.now + 1.0, **settings)
    scene.quorums = dict(before.quorums)
    return scene


def at(scene: Scene, name: str) -> State:
    """Where it stands after one more commit in the quorum it holds."""
    held = scene.quorums[name]
    return State(held.top.step + 1, held.id)


def test_a_quorum_is_kept_before_it_is_sent() -> None:
    scene = Scene(keeps=True)
    scene.hello("a:1")
    scene.hello("b:1")
    scene.join("a:1")
    effects = scene.join("b:1")
    kinds = [type(e) for e in effects]
    assert kinds.index(Keep) < kinds.index(Issue)
    (keep,) = of(Keep, effects)
    assert keep.entry.quorum == of(Issue, effects)[0].quorum
    attempts = {k.replica_id: (k.attempt_id.token, k.boot_id) for k in keep.entry.members}
    assert attempts == {name: (f"token-{name}", BOOT) for name in ("a:1", "b:1")}
    assert not of(Keep, scene.lighthouse.handle(Tick(), 1.0))  # once
    cannot = Scene.started("a:1")  # its shell can keep nothing
    assert not of(Keep, cannot.lighthouse.handle(Tick(), 1.0))


def test_R8c_it_goes_on_at_once_and_ids_grow() -> None:
    before = trained("a:1", "b:1", "c:1", steps=3)
    old = before.lighthouse.current
    scene = follow(before, kept(before))
    effects = scene.hello("a:1")
    assert next(n.event for n in of(Note, effects)) == "adopted"
    assert scene.lighthouse.current == old
    for name in ("b:1", "c:1"):
        scene.hello(name)
    scene.join("a:1", at(scene, "a:1"))
    scene.join("b:1", at(scene, "b:1"))
    (issue,) = of(Issue, scene.join("c:1", at(scene, "c:1")))
    assert issue.quorum.id > old.id
    assert issue.quorum.config_id == old.config_id  # the process groups are kept
    assert issue.quorum.number == old.number + 1


def test_R8c_who_died_in_the_same_moment_is_known_by_its_supervisors_word() -> None:
    """No wait for a lease, though the dead one has never spoken to this lighthouse."""
    before = trained("a:1", "b:1", "c:1")
    scene = follow(before, kept(before))
    for name in ("a:1", "b:1"):
        scene.hello(name)
        scene.join(name, scene.quorums[name].top, JoinReason.FAILED)
    assert issued(scene.feed(AttemptExited("c", 0, "token-c:1", -9, ""))) == [["a:1", "b:1"]]


@pytest.mark.parametrize("heard", ["nothing", "its supervisor", "a neighbour"])
def test_R8c_a_member_on_the_lost_host_of_the_lighthouse_before_is_waited_for_as_on_any_lost_host(heard: str) -> None:
    """It was waited for as one without a supervisor, for 3.5 s longer."""
    before, limits = trained("a:1", "b:1", "c:1"), SilenceLimits()
    previous = kept(before)
    there = tuple(replace(k, boot_id=BOOT if k.replica_id == "a:1" else "boot-there") for k in previous.members)
    scene = follow(before, replace(previous, members=there, boot_id="boot-there"))
    scene.hello("a:1")
    if heard == "a neighbour":
        scene.hello("b:1", boot_id="boot-there")
    scene.wait(0.1)
    if heard == "its supervisor":
        scene.announce("c")
        scene.feed(AttemptStarted("c", 0, "token-c:1"))
    scene.wait(limits.host - 0.2, alive=("a:1",))
    assert not scene.record("c:1").lost
    if heard == "its supervisor":
        scene.feed(SupervisorHeard(scene.supervisors["c"]))
    scene.wait(0.3, alive=("a:1",))
    assert bool(scene.record("c:1").lost) == (heard == "nothing")
    assert not scene.record("c:1").proof
    scene.wait(limits.alone - limits.host, alive=("a:1",))
    assert scene.record("c:1").lost


def test_R8c_a_lease_is_not_counted_anew_by_each_lighthouse() -> None:
    scene, waited = trained("a:1", steps=3), 0.0
    for _ in range(4):  # lighthouses, each of them waits for half a minute and dies
        scene = follow(scene, kept(scene))
        scene.arrive("b:1", reason=JoinReason.NEW)
        assert not of(Issue, scene.wait(28.0, alive=("b:1",)))
        waited += 29.0
    assert not of(Issue, scene.wait(120.0 - waited, alive=("b:1",)))
    assert of(Issue, scene.wait(3.0, alive=("b:1",)))


def test_R8c_a_lease_is_counted_from_the_start_where_nobody_knows_when_it_was_sent() -> None:
    """The clock is of another time namespace."""
    before = trained("a:1", steps=3)
    before.wait(60.0, alive=("a:1",))
    scene = follow(before, replace(kept(before), leased=None, absent=()))
    scene.arrive("b:1", reason=JoinReason.NEW)
    assert not of(Issue, scene.wait(120.0, alive=("b:1",)))
    assert of(Issue, scene.wait(3.0, alive=("b:1",)))


def test_R8c_who_was_lost_has_a_lease_of_its_own_and_the_others_renew_theirs() -> None:
    """b is lost, and its lease is a minute older than a's by the time that a and the lighthouse die."""
    before = trained("a:1", "b:1", steps=2)
    before.close("b:1")
    before.wait(10.0, alive=("a:1",))
    assert kept(before).absent == (Absent("b:1", leased=0.0),)
    before.join("a:1", before.quorums["a:1"].top, JoinReason.FAILED)
    previous = kept(before)
    assert (previous.absent, previous.leased) == ((Absent("b:1", leased=0.0),), pytest.approx(10.0))
    scene = follow(before, previous)
    records = {r.replica_id: r for r in scene.lighthouse._members}
    assert (records["b:1"].lease_sent, records["a:1"].lease_sent) == (0.0, pytest.approx(10.0))


def dead_before_the_lighthouse() -> Scene:
    """F3: b of two dies and its end is told; a goes on alone, in a quorum after it. The next event would close the one before."""
    before = trained("a:1", "b:1")
    before.exited("b:1")
    assert issued(before.join("a:1", before.quorums["a:1"].top, JoinReason.FAILED)) == [["a:1"]]
    return before


@pytest.mark.parametrize("told_again", [False, True])
@pytest.mark.parametrize("lighthouses", [1, 2, 3])
def test_R8c_two_deaths_around_a_restart_cost_no_lease(told_again: bool, lighthouses: int) -> None:
    """F3, R9 (b). b's end is written down, or b is known by its attempt's token when its supervisor tells it again; of
    a, the only carrier, which dies with the lighthouse, its supervisor tells. A new lineage begins at once."""
    before = dead_before_the_lighthouse()
    if not told_again:
        before.wait(0.2)
    for _ in range(lighthouses):
        before = scene = follow(before, kept(before))
        if told_again:
            scene.exited("b:1")
    scene.feed(AttemptExited("a", 0, "token-a:1", -9, ""))
    scene.hello("b:2", attempt_id=AttemptId(1, 0.0, "token-b:2"))
    assert issued(scene.join("b:2", reason=JoinReason.NEW)) == [["b:2"]]


def test_R8c_who_has_committed_speaks_for_all_members_of_that_quorum() -> None:
    """b is lost with its host, and nothing proves that. c, which healed from a, carries on when a and the lighthouse die."""
    before = trained("a:1", "b:1")
    before.close("b:1")
    before.arrive("c:1", reason=JoinReason.NEW)
    before.wait(10.0, alive=("a:1", "c:1"))
    assert issued(before.join("a:1", before.quorums["a:1"].top, JoinReason.FAILED)) == [["a:1", "c:1"]]
    previous = kept(before)
    assert [m.replica_id for q in previous.open for m in q.members] == ["a:1", "b:1"]
    scene = follow(before, previous)
    scene.exited("a:1")
    scene.hello("c:1", state=at(scene, "c:1"))
    assert issued(scene.join("c:1", at(scene, "c:1"), JoinReason.FAILED)) == [["c:1"]]


def test_R8c_what_ended_or_left_is_known_to_the_next_one() -> None:
    before = trained("a:1", "b:1", "c:1", steps=2)
    before.exited("b:1")
    before.leave("c:1", at(before, "c:1"))
    before.wait(0.2)
    assert {a.replica_id: a.proof for a in kept(before).absent} == {
        "b:1": "its process ended with exit code -9",
        "c:1": "it has left",
    }
    scene = follow(before, kept(before))
    assert of(RevokeQuorum, scene.hello("a:1"))  # nobody waits for them
    assert of(Refuse, scene.hello("b:1"))  # it can't be back
    assert issued(scene.join("a:1", scene.quorums["a:1"].top, JoinReason.FAILED)) == [["a:1"]]


def test_how_far_it_had_come_is_known_to_the_next_one() -> None:
    """For people: what is lost with all that held it (core.lighthouse.next_quorum)."""
    before = trained("a:1", steps=2)
    session, held = before.sessions["a:1"], before.quorums["a:1"]
    before.feed(Progress(session, held.id, 40, 1, 0.1))
    scene = follow(before, kept(before))
    scene.exited("a:1")
    scene.hello("a:2", attempt_id=AttemptId(1))
    effects = scene.join("a:2", reason=JoinReason.NEW)
    assert [n.steps for n in of(Note, effects) if n.event == "new_lineage"] == [40]


def test_R8c_a_refused_connect_is_not_written_down_as_proof() -> None:
    """The address may accept the next one; the next lighthouse asks again."""
    before = trained("a:1", "b:1")
    before.kill("b:1")
    before.wait(0.2, alive=("a:1",))
    (absent,) = kept(before).absent
    assert absent.proof == ""
    scene = follow(before, kept(before))
    scene.hello("a:1")
    scene.now += 0.1
    assert [p.replica_id for p in of(Probe, scene.feed(Tick()))] == ["b:1"]
    assert of(RevokeQuorum, scene.refused("b:1"))
    assert scene.record("b:1").proof  # the boot id was written down, too


def test_R2_R7_an_older_attempt_is_fenced_and_the_highest_grant_remembered_by_what_is_written_down() -> None:
    before = trained("a:2")
    previous = kept(before)
    members = tuple(replace(k, attempt_id=AttemptId(3, 0.0, "token-a:2")) for k in previous.members)
    scene = follow(before, replace(previous, members=members, granted_through=40))
    assert scene.lighthouse._quorum_state.granted_through == 40
    (fence,) = of(Fence, scene.hello("a:1", attempt_id=AttemptId(2, 0.0, "old"), quorum=None))
    assert fence.by == "a:2"


def test_R8c_a_quorum_that_nobody_received_is_over_when_they_say_so() -> None:
    before = trained("a:1", "b:1")
    held = dict(before.quorums)
    before.join_all("a:1", "b:1", state=at(before, "a:1"))
    scene = follow(before, kept(before))
    scene.quorums = held  # the lighthouse died between writing and sending
    over = of(RevokeQuorum, scene.hello("a:1"))
    assert over[0].quorum_id == held["a:1"].id
    scene.hello("b:1")
    scene.join("a:1", State(1, held["a:1"].id), JoinReason.REJOINED)
    (issue,) = of(Issue, scene.join("b:1", State(1, held["a:1"].id), JoinReason.REJOINED))
    assert issue.quorum.config_id == issue.quorum.id


def test_a_member_with_a_newer_quorum_shows_that_what_was_written_is_old() -> None:
    """The lighthouse before could not write any more: as without a journal, R8 (a) or (b)."""
    before = trained("a:1", "b:1")
    previous = kept(before)
    newer = quorum(member("a:1", State(5, 1)), member("b:1", State(5, 1)), id=previous.quorum.id + 7)
    scene = follow(before, previous)
    scene.hello("a:1", quorum=newer)
    assert scene.lighthouse.current is None
    assert "takes over quorum" in scene.lighthouse.undecided or not scene.lighthouse._quorum_state.asking
    scene.hello("b:1", quorum=newer)
    assert scene.lighthouse.current == newer


def test_a_peers_client_that_does_not_come_back_is_missed_for_its_heartbeats_only() -> None:
    before = Scene.started("a:1", keeps=True)
    previous = JournalEntry(quorum(member("a:1"), member("theirs:1", library=""), id=9 << 40), 0, ())
    scene = follow(before, previous)
    scene.quorums = {}
    scene.feed(Hello(900, "a:1", AttemptId(0, 0.0, "token-a:1"), boot_id=BOOT, quorum=previous.quorum, lease_left=9.0))
    scene.sessions["a:1"] = 900
    scene.join("a:1", previous.quorum.top, JoinReason.FAILED)
    assert of(Issue, scene.wait(6.0, alive=("a:1",)))


class Written(Scene):
    """Remembers what its shell has written down last, and how often it wrote."""

    def __init__(self, **config: Any) -> None:
        self.written: JournalEntry | None = None
        self.writes = 0
        super().__init__(keeps=True, **config)

    def feed(self, event: LighthouseEvent) -> list[LighthouseEffect]:
        effects = super().feed(event)
        for keep in of(Keep, effects):
            assert effects.index(keep) == 0
            self.written, self.writes = keep.entry, self.writes + 1
        return effects

    @property
    def absent(self) -> dict[str, str]:
        return {a.replica_id: a.proof for a in self.written.absent}


def test_what_is_written_follows_who_is_lost_and_who_is_back() -> None:
    s = Written.started("a:1", "b:1", "c:1")
    s.close("b:1")
    s.wait(10.0, alive=("a:1", "c:1"))
    assert s.absent == {"b:1": ""}
    writes = s.writes
    s.wait(2.0, alive=("a:1", "c:1"))
    assert s.writes == writes  # nothing is new
    s.exited("c:1")
    s.wait(0.1, alive=("a:1",))
    assert s.absent == {"b:1": "", "c:1": "its process ended with exit code -9"}
    s.hello("b:1")
    assert s.absent == {"c:1": "its process ended with exit code -9"}  # at once, for it may be sent a lease now
    writes = s.writes
    s.hello("a:1")
    assert s.writes == writes  # it was not absent


def test_when_leases_were_sent_is_written_once_a_second_and_ahead() -> None:
    s = Written()
    held = s.start("a:1")
    s.now = 50.0
    told = []
    for number in range(1, 41):
        writes = s.writes
        s.feed(Progress(s.sessions["a:1"], held.id, 0, number, 0.0))  # its grant does not grow
        assert s.now <= s.written.leased <= s.now + 1.0
        told += [s.now] if s.writes > writes else []
        s.now += 0.1
    assert 3 <= len(told) <= 5


def test_the_attempts_of_those_in_open_quorums_only_are_written_with_each_quorum_that_leaves_one() -> None:
    s = Written.started("a:1", "b:1")
    s.exited("b:1")
    s.join("a:1", s.quorums["a:1"].top, JoinReason.FAILED)
    assert [k.attempt_id.token for k in s.written.members] == ["token-a:1", "token-b:1"]
    s.join("a:1", at(s, "a:1"))
    assert len(s.written.open) == 1
    s.hello("a:1")
    assert s.written.open == ()
    assert [k.attempt_id.token for k in s.written.members] == ["token-a:1"]


def test_an_attempt_that_is_heard_of_later_is_written_with_the_next_quorum() -> None:
    before = trained("a:1")
    scene = follow(before, replace(kept(before), members=()))
    assert [k.attempt_id.token for k in kept(scene).members] == [""]
    (keep,) = of(Keep, scene.arrive("a:1", at(scene, "a:1")))
    assert keep.entry.quorum.config_id == before.lighthouse.current.config_id
    assert [k.attempt_id.token for k in keep.entry.members] == ["token-a:1"]


def test_M3_a_new_lineage_waits_for_the_supervisors_that_come_back_to_a_new_lighthouse() -> None:
    """Group 1 died, then group 0 with the lighthouse. What group 1's supervisor holds is not known before it has reported."""
    before = trained("0:1", "1:1", steps=3)
    before.exited("1:1")
    scene = follow(before, kept(before), join_timeout=60.0)
    scene.feed(AttemptExited("0", 0, "token-0:1", -9, ""))
    scene.hello("0:2", attempt_id=AttemptId(1, 0.0, "token-0:2"))
    assert not of(Issue, scene.join("0:2", reason=JoinReason.NEW))
    assert "nothing was heard yet of the supervisors of 1:1" in scene.lighthouse.undecided
    assert not of(Issue, scene.wait(TIMING.takeover - 0.2, alive=("0:2",)))
    assert issued(scene.wait(0.4, alive=("0:2",))) == [["0:2"]]
