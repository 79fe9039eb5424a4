"""The lighthouse under random schedules of faults: its books stay right, and when the faults stop all groups meet (L1).

Not the simulated cluster (no members that train); a net for what no scripted case has thought of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.scene import UNIX, Scene, of
from torchft_x.core.messages.lighthouse import Fence, Issue, LighthouseEffect, Refuse
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.types import JoinReason, Life, State

GROUPS = "abc"
CONFIG = {"tick": 1.0, "lease": 30.0, "join_timeout": 2.0}


@dataclass
class Actor:
    """One group as the lighthouse meets it."""

    group: str
    attempt: int = 0
    state: State = field(default_factory=State)
    connected: bool = False
    asking: bool = False

    @property
    def name(self) -> str:
        return f"{self.group}:{self.attempt}"


class Walk:
    def __init__(self) -> None:
        self.scene = Scene(**CONFIG)
        self.actors = [Actor(g) for g in GROUPS]
        self.last_id = 0

    # --- faults and the life between them ------------------------------------------------------------------------

    def connect(self, a: Actor) -> None:
        if a.connected:
            return
        life = Life(a.attempt, 0.0, f"token-{a.name}")
        effects = self.see(self.scene.hello(a.name, life=life, state=a.state))
        assert not of(Fence, effects), (a, effects)
        assert not of(Refuse, effects), (a, effects)
        a.connected = True
        if a.asking:  # R4
            self.see(self.scene.join(a.name, a.state, JoinReason.REJOINED))

    def commit(self, a: Actor) -> None:
        held = self.scene.quorums.get(a.name)
        if a.connected and not a.asking and held is not None:
            a.state = State(held.top.step + 1, held.id)
            self.ask(a, JoinReason.BOUNDARY)

    def ask(self, a: Actor, reason: JoinReason = JoinReason.FAILED) -> None:
        if a.connected and not a.asking:
            a.asking = True
            self.see(self.scene.join(a.name, a.state, reason))

    def drop(self, a: Actor) -> None:
        if a.connected:
            a.connected = False
            self.see(self.scene.close(a.name))

    def kill(self, a: Actor) -> None:
        self.drop(a)
        self.see(self.scene.refused(a.name))
        a.attempt, a.state, a.asking = a.attempt + 1, State(), False

    def leave(self, a: Actor) -> None:
        if a.connected:
            self.see(self.scene.leave(a.name, a.state))
            self.drop(a)
            a.attempt, a.state, a.asking = a.attempt + 1, State(), False

    def silence(self, a: Actor) -> None:
        """Everybody but this one is heard for longer than the heartbeat timeout."""
        self.pause(6.0, [b for b in self.actors if b is not a])

    def restart(self, _a: Actor) -> None:
        old = self.scene
        self.scene = Scene(now=old.now + 2.0, unix=UNIX + old.now + 2.0, **CONFIG)
        self.scene.quorums = old.quorums
        for a in self.actors:
            a.connected = False

    def pause(self, seconds: float, alive: list[Actor]) -> None:
        self.see(self.scene.wait(seconds, alive=tuple(a.name for a in alive if a.connected)))

    # --- what must hold ------------------------------------------------------------------------------------------

    def see(self, effects: list[LighthouseEffect]) -> list[LighthouseEffect]:
        for issue in of(Issue, effects):
            q = issue.quorum
            assert q.id > self.last_id  # I3
            self.last_id = q.id
            assert q.granted_through == q.top.step + 1
            names = {m.replica_id for m in q.members}
            for a in self.actors:
                if a.name in names:
                    assert a.asking, f"{a.name} is in {q} without having asked"  # R3
                    a.asking = False
        self.check_books()
        return effects

    def check_books(self) -> None:
        lighthouse = self.scene.lighthouse
        tenure, roll = lighthouse._tenure, lighthouse._roll
        assert tenure.asking == {r.replica_id for r in roll if r.join is not None and not r.lost}
        inside = [roll.get(m) for m in tenure.inside]
        assert all(r is not None for r in inside)
        assert tenure.missing == {r.replica_id for r in inside if r and not r.lost and r.join is None}
        silent = {r.replica_id for r in roll if not r.lost and r.join is None and (r.unary or r.session is not None)}
        assert tenure.silent == silent
        if tenure.asking:
            assert isinstance(
                lighthouse._succession.outcome(lighthouse._now), Wait
            )  # nothing that could be formed is left

    def all_together(self) -> bool:
        cur = self.scene.lighthouse.current
        return cur is not None and {m.replica_id for m in cur.members} == {a.name for a in self.actors}


FAULTS = ["connect", "commit", "commit", "ask", "drop", "kill", "leave", "silence", "restart"]
schedules = st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, len(GROUPS) - 1)), max_size=40)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules)
def test_L1_when_faults_stop_all_groups_meet(schedule: list[tuple[str, int]]) -> None:
    walk = Walk()
    for what, index in schedule:
        getattr(walk, what)(walk.actors[index])
    for _ in range(4):
        for a in walk.actors:
            walk.connect(a)
        at_start = walk.scene.lighthouse.current
        for a in walk.actors:
            if walk.scene.lighthouse.current is at_start or not walk.all_together():
                walk.ask(a)
        if walk.scene.lighthouse.current is not at_start and walk.all_together():
            break
        walk.pause(35.0, walk.actors)  # a lease and its margin, at most
    assert walk.all_together(), walk.scene.lighthouse
    before = walk.scene.lighthouse.current
    for a in walk.actors:
        walk.commit(a)
    after = walk.scene.lighthouse.current
    assert after.config_id == before.config_id  # nothing happened, so nothing is rebuilt
    assert after.id > before.id
