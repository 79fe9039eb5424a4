"""The object that people are shown, of a lighthouse that really decides."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.core.scene import Scene
from torchft_x.core.messages import Note
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, SupervisorHere
from torchft_x.core.messages.lighthouse import Issue
from torchft_x.core.types import State
from torchft_x.observe.view.attempts import AttemptTable
from torchft_x.observe.view.facts import Copy, Tally
from torchft_x.observe.view.history import History
from torchft_x.observe.view.overview import SCHEMA, Job, overview

NO_JOB = Job(outcome=None, verdict=None, sidecars={}, drained=frozenset())


class Shown:
    """A scene, and what is kept of it."""

    def __init__(self, **config: Any) -> None:
        self.scene, self.history, self.attempts = Scene(**config), History(), AttemptTable()
        self.told = Tally()
        self.copies: dict[str, Copy] = {}
        self.slow: dict[str, float] = {}

    def take(self, effects: list[Any]) -> None:
        lighthouse = self.scene.lighthouse
        for effect in effects:
            if isinstance(effect, Issue):
                self.history.issued(effect.quorum, effect.waited, self.scene.now)
            elif isinstance(effect, Note):
                self.history.noted(effect, lighthouse.current, lighthouse.reached, self.scene.now)

    def look(self, job: Job = NO_JOB) -> dict[str, Any]:
        s = self.scene
        view = s.lighthouse.view(s.now)
        told, copies = self.told, self.copies
        story = s.lighthouse.story(s.now)
        found = overview(
            view, self.history, self.attempts, job, told, copies, self.slow, rate=None, unix=s.now, story=story
        )
        assert json.loads(json.dumps(found)) == found | {
            "quorums": [{**q, "joined": list(q["joined"]), "gone": list(q["gone"])} for q in found["quorums"]]
        }
        return found

    def does(self, job: Job = NO_JOB) -> dict[str, str]:
        return {g["group"]: g["does"] for g in self.look(job)["groups"]}


def test_nothing_yet() -> None:
    found = Shown().look()
    assert found["durations"]["step"] == {"number": 0, "mean": None}
    assert (found["schema"], found["state"], found["groups"], found["quorum"]) == (SCHEMA, "starting", [], None)


def test_a_job_that_trains_and_a_newcomer_that_heals() -> None:
    shown = Shown()
    s = shown.scene
    shown.take(s.arrive("0:x"))
    state = s.committed()
    s.arrive("1:x")
    assert shown.does() == {"0": "trains", "1": "waits"}
    waiting = shown.look()["waiting"]
    assert (waiting["members"], bool(waiting["reason"])) == (1, True)
    shown.take(s.join("0:x", state))
    found = shown.look()
    assert {g["group"]: (g["does"], g["more"]) for g in found["groups"]} == {
        "0": ("trains", ""), "1": ("heals", "copies from 0:x"),
    }  # fmt: skip
    assert (found["state"], found["quorum"]["members"], found["quorum"]["healing"]) == ("training", 2, 1)
    assert [g["copy"] for g in found["groups"]] == [None, None]
    shown.copies = {"1:x": Copy("0:x", 3 * 10**9, 10**10, 2.0)}
    healing = shown.look()["groups"][1]
    assert healing["more"] == "copies from 0:x: 3 GB of 10 GB (30 %), 1.5 GB/s"
    assert (healing["copy"]["bytes"], healing["copy"]["rate"]) == (3 * 10**9, 1.5e9)
    assert [q["reason"] for q in found["quorums"]] == ["the first quorum: group 0", "group 1 joined"]


def test_a_slow_group_is_named() -> None:
    shown = Shown()
    shown.take(shown.scene.arrive("0:x"))
    shown.slow = {"0:x": 0.42}
    (group,) = shown.look()["groups"]
    assert (group["does"], group["slower"]) == ("trains", 0.42)
    assert group["more"] == "its own part of a step takes 42 % longer than that of the others"


def test_groups_as_supervisors_name_them() -> None:
    shown = Shown()
    shown.attempts.receive(SupervisorHere("1", "node-b", stream=1))
    shown.attempts.receive(AttemptStarted("1", 0, "t"))
    shown.scene.hello("train_ddp_1:x")
    groups = shown.look()["groups"]
    assert [(g["group"], g["replica_id"], g["host"], g["supervised"]) for g in groups] == [
        ("1", "train_ddp_1:x", "node-b", True)
    ]


def test_the_job_knows_who_is_awaited_and_how_it_ended() -> None:
    shown = Shown()
    outcome = {"0": {"trouble": ""}, "10": {"trouble": ""}, "2": {"trouble": "is lost: gone"}}
    job = Job(outcome=outcome, verdict=None, sidecars={"eval": {"state": "running"}}, drained=frozenset())
    assert list(shown.does(job).items()) == [("0", "awaited"), ("2", "lost"), ("10", "awaited")]
    assert shown.look(job)["sidecars"] == [{"sidecar": "eval", "state": "running"}]
    done = Job(outcome=outcome, verdict=(1, "The job failed."), sidecars={}, drained=frozenset())
    found = shown.look(done)
    assert (found["state"], found["verdict"]) == ("failed", {"code": 1, "sentence": "The job failed."})


def test_a_group_that_is_started_again() -> None:
    shown = Shown()
    shown.attempts.receive(SupervisorHere("0", "a", stream=1))
    shown.attempts.receive(AttemptStarted("0", 0, "token-0:x"))
    shown.scene.start("0:x", state=State())
    shown.scene.exited("0:x")
    shown.attempts.receive(AttemptExited("0", 0, "token-0:x", -9, "worker 0 killed by SIGKILL"))
    group = shown.look()["groups"][0]
    assert (group["does"], group["more"]) == ("restarts", "worker 0 killed by SIGKILL")
    shown.attempts.receive(AttemptStarted("0", 1, "next"))
    group = shown.look()["groups"][0]
    assert (group["does"], group["restarts"], group["attempt"]) == ("starts", 1, 1)


def test_a_member_that_dies_stays_in_the_list_unless_the_job_does_not_have_its_group_any_more() -> None:
    shown = Shown()
    s = shown.scene
    for name in ("0:x", "1:x"):
        s.hello(name)
    s.join("0:x")
    shown.take(s.join("1:x"))
    s.close("1:x")
    shown.take(s.exited("1:x"))
    fewer = Job(outcome={"0": {"trouble": ""}}, verdict=None, sidecars={}, drained=frozenset())
    assert list(shown.does(fewer)) == ["0"]
    shown.take(s.join("0:x", s.committed()))
    assert list(shown.does(fewer)) == ["0"]
    assert shown.does() == {"0": "trains", "1": "lost"}
    for job in (fewer, NO_JOB):
        found = shown.look(job)
        assert (found["losses"][0]["cause"], found["counts"]["losses"]) == ("exited", {"exited": 1})
    shown.attempts.receive(SupervisorHere("1", "node-b", stream=1))  # until its supervisor has gone, too
    assert list(shown.does(fewer)) == ["0", "1"]
