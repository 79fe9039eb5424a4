"""R8(c): a lighthouse that finds what the one before has written down goes on as if only the sessions had broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.scene import BOOT, UNIX, Scene, member, of, quorum
from torchft_x.core.legacy import Kin, Legacy
from torchft_x.core.lighthouse_config import LighthouseConfig
from torchft_x.core.messages import Fence, Hello, Issue, Keep, LifeEnded, Note, Probe, SendOver, Tick
from torchft_x.core.takeover import inherited
from torchft_x.core.types import JoinReason, Life, Quorum, State


def kept(scene: Scene) -> Legacy:
    """What the present lighthouse has written down last."""
    lighthouse = scene.lighthouse
    lighthouse._keeping._kept = (0, 0)
    (keep,) = of(Keep, lighthouse.handle(Tick(), scene.now))
    return keep.legacy


def trained(*replica_ids: str, steps: int = 1) -> Scene:
    scene = Scene(keeps=True)
    scene.start(*replica_ids)
    for step in range(1, steps):
        scene.join_all(*replica_ids, state=State(step, scene.lighthouse.current.id))
    return scene


def follow(before: Scene, legacy: Legacy | None, **config: object) -> Scene:
    """Another lighthouse in its place, a second later. Everybody holds what it was sent."""
    settings = {"keeps": True, "new_job": False, "restarted": True, "legacy": legacy, **config}
    scene = Scene(now=5000.0, unix=UNIX + before.now + 1.0, **settings)
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
    assert keep.legacy.quorum == of(Issue, effects)[0].quorum
    assert {k.replica_id: (k.life.token, k.boot_id) for k in keep.legacy.kin} == {
        "a:1": ("token-a:1", BOOT),
        "b:1": ("token-b:1", BOOT),
    }
    assert not of(Keep, scene.lighthouse.handle(Tick(), 1.0))  # once


def test_nothing_is_kept_unless_the_shell_can() -> None:
    scene = Scene()
    scene.start("a:1")
    assert not of(Keep, scene.lighthouse.handle(Tick(), 1.0))


def test_the_kin_are_made_again_only_when_something_has_changed() -> None:
    scene = trained("a:1", "b:1")
    first = scene.lighthouse._keeping._kin
    scene.join_all("a:1", "b:1", state=at(scene, "a:1"))
    assert scene.lighthouse._keeping._kin is first
    scene.hello("c:1")
    scene.join("c:1", reason=JoinReason.NEW)
    scene.join_all("a:1", "b:1", state=at(scene, "a:1"))
    assert [k.replica_id for k in scene.lighthouse._keeping._kin] == ["a:1", "b:1", "c:1"]


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


def test_R8c_ids_are_above_the_one_found_whatever_the_clock_says() -> None:
    before = trained("a:1")
    legacy = kept(before)
    scene = follow(before, replace(legacy, quorum=replace(legacy.quorum, id=2**61)))
    assert scene.lighthouse._tenure.next_id > 2**61


def test_R8c_who_died_in_the_same_moment_is_known_by_its_supervisors_word() -> None:
    """No wait for a lease, though the dead one has never spoken to this lighthouse."""
    before = trained("a:1", "b:1", "c:1")
    scene = follow(before, kept(before))
    for name in ("a:1", "b:1"):
        scene.hello(name)
        scene.join(name, scene.quorums[name].top, JoinReason.FAILED)
    (issue,) = of(Issue, scene.feed(LifeEnded("token-c:1", -9)))
    assert [m.replica_id for m in issue.quorum.members] == ["a:1", "b:1"]


def test_R8c_the_only_carrier_died_with_the_lighthouse_and_its_supervisor_says_so() -> None:
    """R9(b): a new lineage at once, which took a lease without the ledger."""
    before = trained("a:1", steps=3)
    scene = follow(before, kept(before))
    scene.feed(LifeEnded("token-a:1", -9))
    scene.hello("a:2", life=Life(1, 0.0, "token-a:2"))
    (issue,) = of(Issue, scene.join("a:2", reason=JoinReason.NEW))
    assert issue.quorum.members[0].replica_id == "a:2"


def test_R8c_the_only_carrier_is_away_and_may_live() -> None:
    before = trained("a:1", steps=3)
    scene = follow(before, kept(before))
    scene.hello("b:1")
    scene.join("b:1", reason=JoinReason.NEW)
    assert not of(Issue, scene.wait(100.0, alive=("b:1",)))
    assert of(Issue, scene.wait(30.0, alive=("b:1",)))  # its lease is counted from this lighthouse's start


def test_R8c_who_does_not_come_back_is_probed_and_lost() -> None:
    before = trained("a:1", "b:1")
    scene = follow(before, kept(before))
    scene.hello("a:1")
    scene.now += 0.1
    probes = of(Probe, scene.feed(Tick()))
    assert [p.replica_id for p in probes] == ["b:1"]
    assert of(SendOver, scene.refused("b:1"))
    record = scene.lighthouse._roll.get("b:1")
    assert record.proof  # the boot id was written down, too


def test_R8c_a_quorum_that_nobody_received_is_over_when_they_say_so() -> None:
    before = trained("a:1", "b:1")
    held = dict(before.quorums)
    before.join_all("a:1", "b:1", state=at(before, "a:1"))
    scene = follow(before, kept(before))
    scene.quorums = held  # the lighthouse died between writing and sending
    over = of(SendOver, scene.hello("a:1"))
    assert over[0].quorum_id == held["a:1"].id
    scene.hello("b:1")
    scene.join("a:1", State(1, held["a:1"].id), JoinReason.REJOINED)
    (issue,) = of(Issue, scene.join("b:1", State(1, held["a:1"].id), JoinReason.REJOINED))
    assert issue.quorum.config_id == issue.quorum.id


def test_R2_an_older_life_of_a_member_is_fenced_by_what_is_written_down() -> None:
    before = trained("a:2")
    legacy = kept(before)
    kin = tuple(replace(k, life=Life(3, 0.0, "token-a:2")) for k in legacy.kin)
    scene = follow(before, replace(legacy, kin=kin))
    (fence,) = of(Fence, scene.hello("a:1", life=Life(2, 0.0, "old"), quorum=None))
    assert fence.by == "a:2"


def test_R7_the_highest_grant_is_remembered() -> None:
    before = trained("a:1", "b:1")
    scene = follow(before, replace(kept(before), granted_through=40))
    assert scene.lighthouse._tenure.granted_through == 40


def test_a_member_with_a_newer_quorum_shows_that_what_was_written_is_old() -> None:
    """The lighthouse before could not write any more: as without a ledger, R8 (a) or (b)."""
    before = trained("a:1", "b:1")
    legacy = kept(before)
    newer = quorum(member("a:1", State(5, 1)), member("b:1", State(5, 1)), id=legacy.quorum.id + 7)
    scene = follow(before, legacy)
    scene.hello("a:1", quorum=newer)
    assert scene.lighthouse.current is None
    assert "takes over quorum" in scene.lighthouse.undecided or not scene.lighthouse._tenure.asking
    scene.hello("b:1", quorum=newer)
    assert scene.lighthouse.current == newer


def test_R8_without_a_ledger_all_is_as_before() -> None:
    before = trained("a:1", "b:1")
    scene = follow(before, None)
    scene.hello("a:1")
    assert scene.lighthouse.current is None


@pytest.mark.parametrize("place", [0, 1])
def test_of_several_lighthouses_another_may_know_more(place: int) -> None:
    legacy = Legacy(Quorum(7, 7, 1, (member("a:1"),), lease=120.0), 0, (Kin("a:1", Life()),))
    assert inherited(LighthouseConfig(legacy=legacy)) is legacy
    assert inherited(LighthouseConfig(legacy=legacy, place=place)) is None


def test_a_peers_client_that_does_not_come_back_is_missed_for_its_heartbeats_only() -> None:
    before = Scene(keeps=True)
    before.start("a:1")
    legacy = Legacy(quorum(member("a:1"), member("theirs:1", library=""), id=9 << 40), 0, ())
    scene = follow(before, legacy)
    scene.quorums = {}
    scene.feed(Hello(900, "a:1", Life(0, 0.0, "token-a:1"), boot_id=BOOT, quorum=legacy.quorum, lease_left=9.0))
    scene.sessions["a:1"] = 900
    scene.join("a:1", legacy.quorum.top, JoinReason.FAILED)
    assert of(Issue, scene.wait(6.0, alive=("a:1",)))
