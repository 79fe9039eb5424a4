"""What a run was: values only. Times are unix seconds by the reference's clock (`clocks`); None: it never happened, or
nobody knows. A whole run is as large as its failures are many, however many steps it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a group did for a while."""

    begin: float
    end: float
    what: str
    """``starting`` (its processes), ``joining`` (they wait for a quorum, or heal), ``training``, ``out`` (left out)."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """A group from the start of its processes to the end of the last one."""

    group: str
    attempt: int
    replica_id: str  # empty: it never had a Manager
    started: float | None  # by its supervisor
    joined: float | None  # the first of its workers made its Manager
    healed: float | None  # it holds the state of the others, or one of its own
    first_commit: float | None
    last_commit: float | None
    commits: int  # of rank 0
    ended: float | None
    code: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """A replica group, over all its lives."""

    name: str
    workers: int
    lives: tuple[Life, ...]
    spans: tuple[Span, ...]
    commits: int
    bytes: float  # payload of its ranks' reductions

    @property
    def restarts(self) -> int:
        return max(0, len(self.lives) - 1)


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """Who trained together, until the next one."""

    id: int
    number: int
    step: int
    t: float  # it was issued, or if nobody says so, received
    received: float | None
    until: float | None  # None: to the end
    members: tuple[str, ...]  # replica ids
    healing: tuple[str, ...]  # those of them that copy state first

    @property
    def contributors(self) -> int:
        return len(set(self.members) - set(self.healing))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What `torchft_x chaos` did."""

    t: float
    kind: str
    group: str
    rank: int | None
    number: int  # of the fault in its log, from 1
    duration: float | None  # seconds that a process was stopped


PHASES = ("fault", "detected", "released", "regrouped", "committed", "restarted", "healed", "back", "whole")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A life that was lost, or left out, or left; and what that cost."""

    group: str  # empty: the lighthouse
    kind: str
    """``died``, ``hung``, ``lost`` (nobody said how it ended), ``left out``, ``left`` (in good order), ``nothing``
    (a fault that cost nobody a member), ``lighthouse``."""
    reason: str
    fault: float | None
    """The process ended, as its supervisor or chaos knows it."""
    by: Fault | None
    """What chaos did."""
    detected: float | None
    """Another member, or the lighthouse, knew."""
    released: float | None
    """The last of the others was out of the collectives in which it waited."""
    regrouped: float | None
    """The others had a quorum without it."""
    committed: float | None
    """The first commit in that quorum, or in a later one."""
    restarted: float | None
    """Its next life made its Manager."""
    healed: float | None
    """That life had the state of the others."""
    back: float | None
    """That life's first commit. Of a lighthouse: the next one serves."""
    whole: float | None
    """A step was committed by as many groups as before."""
    stood: float
    """Seconds in which no step was committed, beyond a usual step."""
    dropped: int
    """Steps that the others dropped."""
    redone: int
    """Steps whose gradients were reduced again."""
    without: int
    """Steps that the others committed without it."""
    thrown: int
    """Committed steps that nobody holds any more."""

    @property
    def t(self) -> float:
        """When it began, as far as anybody knows."""
        return next(t for t in (self.fault, self.detected, self.regrouped, self.back) if t is not None)

    @property
    def phases(self) -> list[tuple[str, float]]:
        """What happened, with the seconds since it began; what went without is left out."""
        return [(name, t - self.t) for name in PHASES if (t := getattr(self, name)) is not None]


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Training went on from an older state, since nobody held the newest one."""

    t: float
    quorum: int
    steps: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    number: int = 0
    step: int | None = None  # of the newest
    seconds: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Of rank 0 of all groups: from the begin of a step to its commit."""

    median: float
    p95: float
    p99: float
    longest: float
    edges: tuple[float, ...]  # of the bars, one more than there are
    bars: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Batches that count, against what the groups could have made without any trouble."""

    batches: int  # a step of four groups is four
    could: float
    usual: float  # seconds of a step of all groups when nothing happens
    groups: int  # the most that contributed to a step
    missing: int  # batches of groups that were away while the others went on

    @property
    def share(self) -> float:
        return self.batches / self.could if self.could else 0.0


@dataclass(frozen=True, kw_only=True)
class Host:
    offset: float  # seconds that its wall clock is fast, against the first one's
    estimated: bool
    processes: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """Of the loss curve."""

    step: int
    t: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """All of it."""

    run_dir: str
    began: float
    ended: float  # the newest event
    code: int | None  # of the job; None: it goes on, or its end was not written
    verdict: str
    steps: int  # committed
    unlogged: int  # the last ones of them, which only the lighthouse knows of: the logs were cut short
    trained: tuple[float, float] | None  # the first and the last commit
    goodput: Goodput | None  # None: too few steps
    step_times: StepTimes | None
    dropped: int  # steps
    redone: int
    rate: tuple[float, ...]  # batches a second, in equal parts of `trained`
    groups: tuple[Group, ...]
    quorums: tuple[Quorum, ...]
    losses: tuple[Loss, ...]
    stood: float  # seconds without a commit because of them, beyond usual steps
    faults: tuple[Fault, ...]
    lineages: tuple[Lineage, ...]
    checkpoints: Checkpoints
    curve: tuple[Point, ...]
    errors: tuple[str, ...]
    hosts: tuple[Host, ...]
    events: int
    unreadable: int
    incomplete: tuple[str, ...]  # logs that a full disk cut short

    @property
    def bytes(self) -> float:
        return sum(group.bytes for group in self.groups)
