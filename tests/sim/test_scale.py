"""Many groups and the real lighthouse: small here with every check after every event; ten thousand by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sim.scale import simulate
from tests.sim.scale_checks import ViolationError
from tests.sim.scale_faults import Churn
from tests.sim.scale_world import Options, World
from torchft_x.core.lighthouse import next_quorum
from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.quorum.rule import Form, Wait
from torchft_x.rpc.transport.limits import MAX_MEMBERS

ROOT = Path(__file__).parents[2]
ROUGH = Options(groups=16, steps=120, deaths=100, troubles=100, restarts=40, books=1)


@pytest.mark.parametrize("grants", [False, True], ids=["one-step", "grants"])
@pytest.mark.parametrize("seed", range(3))
def test_rules_and_books_hold_under_churn(grants: bool, seed: int) -> None:
    world, found = simulate(replace(ROUGH, grants=grants, seed=seed))
    assert found["steps"] >= 120
    assert world.checks.recounts > world.events
    seen = found["counts"]
    assert all(seen[what] for what in ("deaths", "stops", "restarts", "note adopted", "note member_lost"))
    assert ("Progress" in seen) is grants


@pytest.mark.parametrize("groups", [1, 2])
def test_a_few_groups_and_new_lineages(groups: int) -> None:
    """With so few all of them are gone now and then, and the last lease has to end."""
    _, found = simulate(replace(ROUGH, groups=groups, deaths=2500, steps=80))
    assert found["counts"]["note new_lineage"]


def test_the_same_seed_is_the_same_run_whatever_strings_hash_to() -> None:
    code = (
        "from dataclasses import replace; from tests.sim.scale import simulate; from tests.sim.test_scale import ROUGH;"
        "w, f = simulate(replace(ROUGH, grants=True, books=10**6)); print(w.now, f['counts'])"
    )

    def said(seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout

    assert said("1") == said("2") != ""


def calls_per_event(groups: int) -> dict[str, float]:
    """How many functions the lighthouse calls for one event that leads to no quorum, by kind of event."""
    total: dict[str, int] = {}
    times: dict[str, int] = {}
    original, calls = Lighthouse.handle, 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def handle(self: Lighthouse, event: Any, now: float) -> Any:
        nonlocal calls
        before, calls = self.current, 0
        sys.setprofile(count)
        try:
            effects = original(self, event, now)
        finally:
            sys.setprofile(None)
        if self.current is before:
            name = type(event).__name__
            total[name] = total.get(name, 0) + calls
            times[name] = times.get(name, 0) + 1
        return effects

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Lighthouse, "handle", handle)
        world = World(Options(groups=groups, steps=12, restarts=6, deaths=0, troubles=0, books=10**9))
        Churn(world).start()
        world.go()
    return {name: total[name] / times[name] for name in total}


def test_an_event_costs_the_same_with_ten_times_as_many_groups() -> None:
    few, many = calls_per_event(20), calls_per_event(200)
    for name in ("Join", "Hello", "SupervisorHere"):
        assert many[name] < 1.5 * few[name] + 5, (name, few, many)


@pytest.mark.slow
def test_as_many_groups_as_a_job_may_have() -> None:
    _, found = simulate(Options(groups=MAX_MEMBERS, steps=30, deaths=5, restarts=15, grants=True, troubles=2))
    assert found["steps"] >= 30
    assert all(found["counts"][what] for what in ("deaths", "restarts", "note adopted"))


# --- the checks themselves -------------------------------------------------------------------------------------------


def must_fail(rule: str, **options: Any) -> None:
    with pytest.raises(ViolationError, match=rule):
        simulate(replace(ROUGH, **options))


def test_books_that_forget_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    recount = QuorumState.recount

    def forgetful(self: QuorumState, record: Any) -> None:
        recount(self, record)
        self.gone.clear()

    monkeypatch.setattr(QuorumState, "recount", forgetful)
    must_fail("books: gone")


def test_a_member_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    form = next_quorum.form

    def forget_one(situation: Any) -> Form | Wait:
        decision = form(situation)
        if isinstance(decision, Form) and len(decision.members) > 3:
            return replace(decision, members=decision.members[1:])
        return decision

    monkeypatch.setattr(next_quorum, "form", forget_one)
    must_fail("L2: left out")


def test_a_join_that_is_never_answered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_quorum, "form", lambda situation: Wait("never"))
    must_fail("L1: nothing is committed", books=10**6)


def test_an_id_used_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumState, "raise_ids", lambda self, heard: None)
    issue = QuorumState.issue

    def repeat(self: QuorumState, *args: Any, **fields: Any) -> Any:
        quorum = issue(self, *args, **fields)
        self.next_id = quorum.id
        return quorum

    monkeypatch.setattr(QuorumState, "issue", repeat)
    must_fail("I3: ids must grow")


def test_a_quorum_of_newcomers_beside_a_living_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    form = next_quorum.form
    monkeypatch.setattr(next_quorum, "form", lambda s: form(replace(s, over=s.lost)))  # who is lost is over
    must_fail("I4: a new lineage", groups=2, steps=400, deaths=0, troubles=2000, restarts=0)
