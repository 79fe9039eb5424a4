"""Members and runs of the large simulation: small records instead of group machines, so that ten thousand fit."""

from __future__ import annotations

from torchft_x.core.fingerprint import Fingerprint, Trait
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State

LIBRARY = "torchft_x/0.1"
LIGHTHOUSE_BOOT = "boot-0"
NOTHING = State()
_RUNS_ON = {"runs_on": True} if "runs_on" in Hello.__dataclass_fields__ else {}


class Actor:
    """One life of one group."""

    __slots__ = (
        "active",
        "address",
        "alive",
        "asked_at",
        "asking",
        "attempt",
        "boot",
        "extended_at",
        "granted",
        "group",
        "held",
        "inbox",
        "lease_until",
        "leaving",
        "linked",
        "member",
        "misfit",
        "name",
        "powered",
        "reason",
        "run",
        "sent_at",
        "session",
        "state",
        "stopped",
        "told_traits",
        "wants",
    )  # fmt: skip

    def __init__(self, group: int, attempt: int, *, misfit: bool = False) -> None:
        self.group = group  # index; the group survives its lives
        self.attempt = attempt  # which life of the group
        self.name = f"train_{group}:{attempt}"
        self.address = f"http://h{group % 997}:{attempt}"
        self.boot = f"boot-{group % 997}"  # of its host; a few share the lighthouse's
        self.misfit = misfit  # declares something that nobody else does
        self.alive = True
        self.powered = True  # its host answers for it: False after a power loss
        self.stopped = False  # alive but not scheduled: sends and takes nothing
        self.session: int | None = None  # as the lighthouse sees it
        self.linked = False  # whether what is sent on that session arrives
        self.state = NOTHING
        self.held: Quorum | None = None  # newest quorum received
        self.run: Run | None = None  # steps it takes part in
        self.active = False  # takes part in the present step of its run
        self.member = Member(self.name)  # as of its latest join
        self.asking = False  # its join stands at the lighthouse, as far as anybody can know
        self.wants: JoinReason | None = None  # must ask as soon as it can, and why
        self.reason = JoinReason.NEW  # of its latest join
        self.leaving = False  # leaves instead of asking the next time
        self.granted = 0  # highest step it may run in the quorum it holds
        self.extended_at = 0  # from where the latest extension counts
        self.lease_until = 0.0  # commits nothing in the quorum it holds after this
        self.asked_at = 0.0  # when it last asked for a quorum or a grant: leases count from here
        self.sent_at = 0.0  # when it last said anything
        self.told_traits = False  # on the present session
        self.inbox: list[Quorum | int] = []  # while stopped: quorums, and ids of quorums that are over

    def __repr__(self) -> str:
        flags = [w for w in ("alive", "stopped", "asking", "leaving") if getattr(self, w)]
        return f"<{self.name} {self.state} session={self.session} {' '.join(flags)} wants={self.wants}>"

    def set_active(self, active: bool) -> None:
        if self.active is not active and self.run is not None:
            self.active = active
            self.run.blocked += -1 if active else 1

    def lose_session(self) -> None:
        self.session, self.linked = None, False
        if self.asking:
            self.asking = False
            self.wants = self.reason  # the same join, on a new session

    @property
    def able(self) -> bool:
        """Can say something to the lighthouse."""
        return self.alive and not self.stopped and self.linked

    @property
    def token(self) -> str:
        return f"token-{self.name}"

    def hello(self, session: int, now: float) -> Hello:
        self.settle()
        return Hello(
            session,
            self.name,
            Life(self.attempt, 0.0, self.token),
            self.address,
            self.state,
            self.held,
            max(self.granted, self.run.step + 1 if self.active and self.run else 0),
            max(0.0, self.lease_until - now) if self.held else 0.0,
            self.boot,
            LIBRARY,
            **_RUNS_ON,
        )

    def settle(self) -> None:
        """Take over what the run it is in has committed."""
        run = self.run
        if run is not None and run.state is not None:
            self.state = run.state

    def traits(self) -> Fingerprint:
        words = "another model" if self.misfit else "12 tensors"
        return Fingerprint((Trait("PyTorch", "2.7", "2.7.0"), Trait("model", words, words)))


class Run:
    """The steps that the members of one quorum take together."""

    __slots__ = (
        "actors",
        "blocked",
        "broken",
        "due",
        "ends",
        "hangs_since",
        "lease_until",
        "partial",
        "quorum",
        "state",
    )

    def __init__(self, quorum: Quorum, actors: list[Actor]) -> None:
        self.quorum = quorum
        self.actors = actors
        self.state: State | None = None  # newest that all have committed in it
        self.blocked = 0  # members that don't take part in the step now: dead, stopped, asking, nothing received
        self.hangs_since: float | None = None  # when its collectives began to wait for a member
        self.broken = False  # its collectives were released
        self.partial = False  # when it broke some members held the result already
        self.lease_until = 0.0  # no member's lease ends before
        self.due: dict[int, list[Actor]] = {}  # step -> who wants more steps, or has used up its grant, there
        self.ends: dict[int, list[Actor]] = {}  # step -> whose grant ends there

    @property
    def step(self) -> int:
        """Committed so far."""
        return self.state.step if self.state is not None else self.quorum.top.step
