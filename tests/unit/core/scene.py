"""A lighthouse without I/O for tests: short calls instead of events, effects by kind, the test sets the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptExited, SupervisorHere
from torchft_x.core.messages.lighthouse import (
    Closed,
    Fence,
    Heartbeat,
    Hello,
    Issue,
    Join,
    Leave,
    LighthouseEffect,
    LighthouseEvent,
    Probe,
    Probed,
    Refuse,
    RevokeQuorum,
    SignOfLife,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.types import AttemptId, JoinReason, Member, Quorum, State

T = TypeVar("T")
OURS = "torchft_x/0.1"
BOOT = "boot-of-this-host"
UNIX = 1_000_000.0  # Unix time in seconds; the first id is this in milliseconds << 10


def member(replica_id: str, state: State | None = None, **fields: Any) -> Member:
    """Return a member of ours, or a peer's client with library=''."""
    host = replica_id.replace(":", "-")
    values: dict[str, Any] = {"address": f"http://{host}", "store_address": f"{host}-store", "library": OURS, **fields}
    return Member(replica_id, state=state or State(), **values)


def quorum(*members: Member, id: int = 7, **fields: Any) -> Quorum:
    ordered = tuple(sorted(members, key=lambda m: m.replica_id))
    return Quorum(**{"id": id, "config_id": id, "number": 1, "members": ordered, "lease": 120.0, **fields})


def of(kind: type[T], effects: list[LighthouseEffect]) -> list[T]:
    return [e for e in effects if isinstance(e, kind)]


class Scene:
    """One lighthouse with sessions 1, 2, ... opened in order. `now` is changed by `wait` or by the test."""

    def __init__(self, *, now: float = 0.0, unix: float = UNIX, **config: Any) -> None:
        self.lighthouse = Lighthouse(
            LighthouseConfig(**{"boot_id": BOOT, "give_up_after": 0.0, **config}), now=now, unix=unix
        )
        self.now = now
        self.tick: float = config.get("tick", 0.1)
        self.sessions: dict[str, int] = {}  # replica id -> newest session
        self.supervisors: dict[str, int] = {}  # group -> stream of its supervisor
        self.quorums: dict[str, Quorum] = {}  # replica id -> newest quorum sent to it
        self.asked: dict[int, str] = {}  # unary call -> replica id
        self._count = 0

    @classmethod
    def started(cls, *replica_ids: str, **config: Any) -> Any:
        """Return a scene whose first quorum consists of these members."""
        scene = cls(**config)
        scene.start(*replica_ids)
        return scene

    def feed(self, event: LighthouseEvent) -> list[LighthouseEffect]:
        effects = self.lighthouse.handle(event, self.now)
        by_session = {s: r for r, s in self.sessions.items()}
        for issue in of(Issue, effects):
            for session in issue.sessions:
                self.quorums[by_session[session]] = issue.quorum
            for call in issue.calls:
                self.quorums[self.asked[call]] = issue.quorum
        return effects

    # --- members of ours -----------------------------------------------------------------------------------------

    def hello(self, replica_id: str, **fields: Any) -> list[LighthouseEffect]:
        """Open a session. The hello reports the quorum last sent to the member, unless `fields` say otherwise."""
        self._count += 1
        held = self.quorums.get(replica_id)
        values: dict[str, Any] = {
            "attempt_id": AttemptId(0, 0.0, f"token-{replica_id}"),
            "address": member(replica_id).address,
            "boot_id": BOOT,
            "library": OURS,
            "quorum": held,
            "lease_left": 100.0 if held else 0.0,
            **fields,
        }
        effects = self.feed(Hello(self._count, replica_id, **values))
        if not any(e.session == self._count for e in (*of(Refuse, effects), *of(Fence, effects))):
            self.sessions[replica_id] = self._count
        return effects

    def join(
        self,
        replica_id: str,
        state: State | None = None,
        reason: JoinReason = JoinReason.BOUNDARY,
        suspects: tuple[str, ...] = (),
        *,
        traits: Fingerprint | None = None,
        **fields: Any,
    ) -> list[LighthouseEffect]:
        return self.feed(Join(self.sessions[replica_id], member(replica_id, state, **fields), reason, suspects, traits))

    def arrive(self, replica_id: str, *args: Any, **fields: Any) -> list[LighthouseEffect]:
        """Open a session and join on it. Return the effects of the join."""
        self.hello(replica_id)
        return self.join(replica_id, *args, **fields)

    def join_all(self, *replica_ids: str, state: State | None = None) -> list[LighthouseEffect]:
        """Join with all. Return the effects of the last join."""
        effects: list[LighthouseEffect] = []
        for replica_id in replica_ids:
            effects = self.join(replica_id, state)
        return effects

    def start(self, *replica_ids: str, state: State | None = None) -> Quorum:
        """Open sessions and join with all. Return the quorum of them."""
        for replica_id in replica_ids:
            self.hello(replica_id)
        (issue,) = of(Issue, self.join_all(*replica_ids, state=state))
        assert [m.replica_id for m in issue.quorum.members] == sorted(replica_ids)
        return issue.quorum

    @property
    def state(self) -> QuorumState:
        """The lighthouse's present quorum, and who asks for the next one."""
        return self.lighthouse._quorum_state

    @property
    def announced(self) -> set[str]:
        """Groups that a first quorum waits for."""
        return set(self.lighthouse._members.supervisors.groups)

    def is_over(self, replica_id: str, now: float | None = None) -> bool:
        """Return whether it is proven that this member commits nothing more."""
        return self.lighthouse._waiting.is_over(self.record(replica_id), self.now if now is None else now)

    def record(self, replica_id: str) -> MemberRecord:
        """Return the lighthouse's record of this member."""
        return self.lighthouse._members.get(replica_id)

    def committed(self) -> State:
        """Return the state after a commit of the present quorum's step."""
        cur = self.lighthouse.current
        return State(cur.top.step + 1, cur.id)

    def heard(self, replica_id: str) -> list[LighthouseEffect]:
        return self.feed(SignOfLife(self.sessions[replica_id]))

    def leave(self, replica_id: str, state: State) -> list[LighthouseEffect]:
        return self.feed(Leave(self.sessions[replica_id], state))

    def close(self, replica_id: str) -> list[LighthouseEffect]:
        return self.feed(Closed(self.sessions[replica_id]))

    def kill(self, replica_id: str) -> list[LighthouseEffect]:
        """End a member: its stream breaks and a connect to it is refused."""
        effects = self.close(replica_id)
        assert any(p.replica_id == replica_id for p in of(Probe, effects)), effects
        return effects + self.refused(replica_id)

    def refused(self, replica_id: str) -> list[LighthouseEffect]:
        return self.feed(Probed(replica_id, True))

    def exited(self, replica_id: str, code: int = -9) -> list[LighthouseEffect]:
        """Report the end of a member, as its supervisor does."""
        return self.feed(AttemptExited(replica_id.split(":")[0], 0, f"token-{replica_id}", code, ""))

    # --- peer's clients, supervisors, time -----------------------------------------------------------------------

    def unary(self, replica_id: str, call: int, step: int = 0, **fields: Any) -> list[LighthouseEffect]:
        self.asked[call] = replica_id
        return self.feed(UnaryJoin(call, replace(member(replica_id, State(step), **fields), library="")))

    def unary_gone(self, call: int) -> list[LighthouseEffect]:
        return self.feed(UnaryGone(call))

    def beat(self, *replica_ids: str) -> None:
        for replica_id in replica_ids:
            self.feed(Heartbeat(replica_id))

    def announce(self, *groups: str) -> None:
        for group in groups:
            self.supervisors[group] = 1000 + len(self.supervisors)
            self.feed(SupervisorHere(group, "host", stream=self.supervisors[group]))

    def wait(self, seconds: float, *, alive: tuple[str, ...] = ()) -> list[LighthouseEffect]:
        """Advance the time tick by tick, with pings of the members in `alive`. Return all effects."""
        effects: list[LighthouseEffect] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + self.tick)
            for replica_id in alive:
                if replica_id in self.sessions:
                    effects += self.heard(replica_id)
                else:
                    effects += self.feed(Heartbeat(replica_id))
            effects += self.feed(Tick())
        return effects


def issued(effects: list[LighthouseEffect]) -> list[list[str]]:
    """Return the members of each quorum issued."""
    return [[m.replica_id for m in e.quorum.members] for e in of(Issue, effects)]


def overs(effects: list[LighthouseEffect]) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    return [(e.sessions, e.lost) for e in of(RevokeQuorum, effects)]


def notes(effects: list[LighthouseEffect]) -> list[str]:
    return [e.event for e in of(Note, effects)]
