"""Classes of a run's result, whose size depends on the number of failures, not of steps.

Times are unix seconds by the wall clock of the host that wrote the event; None: it never happened, or is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Span:
    """An activity of a group, with its time."""

    begin: float
    end: float
    what: str
    """``starting`` (its processes), ``joining`` (they wait for a quorum, or heal), ``training``, ``out`` (left out)."""


@dataclass(kw_only=True)
class AttemptSummary:
    """A group from the start of its processes to the end of the last one. `attempts` alone changes it."""

    group: str
    number: int
    replica_id: str = ""  # '': it never had a Manager
    started: float | None = None  # its supervisor started it
    joined: float | None = None  # the first of its workers made its Manager
    healed: float | None = None  # it held the state of the others, or one of its own
    first_commit: float | None = None
    last_commit: float | None = None
    commits: int = 0  # number of rank 0's commits
    ended: float | None = None
    code: int | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A replica group, over all its attempts."""

    name: str
    workers: int
    attempts: tuple[AttemptSummary, ...]
    spans: tuple[Span, ...]
    commits: int
    bytes: float  # payload of its ranks' reductions

    @property
    def restarts(self) -> int:
        return max(0, len({attempt.number for attempt in self.attempts}) - 1)


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """A quorum: the members that trained together until the next one."""

    id: int
    number: int
    step: int
    t: float  # time of its issue, or if unknown, of its first receipt
    received: float | None
    until: float | None  # time of the next quorum; None: it was the last
    members: tuple[str, ...]  # replica ids
    healing: tuple[str, ...]  # members that first copy the state

    @property
    def contributors(self) -> int:
        return len(set(self.members) - set(self.healing))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault made by `torchft_x chaos`."""

    t: float
    kind: str
    group: str
    rank: int | None
    number: int  # its number in the log of chaos, from 1
    duration: float | None  # seconds for which a process was stopped


PHASES = ("fault", "detected", "released", "regrouped", "committed", "restarted", "healed", "back", "whole")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss and cost of an attempt that died, was left out, or left. Floats that may be None are times of events."""

    kind: str
    """``died``, ``hung``, ``lost`` (its end is unknown), ``left out``, ``left`` (gracefully), ``nothing`` (a fault
    without a lost member), ``lighthouse``."""
    group: str = ""  # '': the lighthouse
    reason: str = ""
    fault: float | None = None
    """The process ended, as reported by its supervisor or chaos."""
    by: Fault | None = None
    """The fault that chaos made."""
    detected: float | None = None
    """Another member, or the lighthouse, knew of the loss."""
    released: float | None = None
    """The last of the other groups left the collectives in which it waited."""
    regrouped: float | None = None
    """The other groups had a quorum without it."""
    committed: float | None = None
    """The first commit in that quorum, or in a later one."""
    restarted: float | None = None
    """The group's next attempt made its Manager."""
    healed: float | None = None
    """That attempt had the state of the others."""
    back: float | None = None
    """That attempt made its first commit. For a lighthouse: the next one serves."""
    whole: float | None = None
    """A step was committed by as many groups as before."""
    stood: float = 0.0
    """Seconds in which no step was committed, beyond a usual step."""
    dropped: int = 0
    """Steps that the others dropped."""
    redone: int = 0
    """Steps whose gradients were reduced again."""
    without: int = 0
    """Steps that the others committed without it."""
    thrown: int = 0
    """Committed steps that no group holds any more."""

    @property
    def t(self) -> float:
        """Time of the loss's first known event."""
        return next(t for t in (self.fault, self.detected, self.regrouped, self.back) if t is not None)

    @property
    def phases(self) -> list[tuple[str, float]]:
        """Known phases, each with the seconds since `t`; 0 where another host's clock says that it was before."""
        return [(name, max(0.0, t - self.t)) for name in PHASES if (t := getattr(self, name)) is not None]


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """A new lineage: training went on from an older state, since no group held the newest one."""

    t: float
    quorum: int
    steps: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Span of steps for which a group's own part of a step took longer than that of the others."""

    group: str
    begin: int
    end: int
    slower: float  # largest part by which it took longer: 0.4 is 1.4 times as long


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    number: int = 0
    step: int | None = None  # step of the newest checkpoint
    seconds: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds from the start of a step to its commit, for rank 0 of all groups."""

    median: float
    p95: float
    p99: float
    longest: float
    edges: tuple[float, ...]  # edges of the bars: one more than bars
    bars: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Batches that count, compared with those that the groups could have made without failures."""

    batches: int  # a step of four groups counts four
    could: float
    usual: float  # seconds of an undisturbed step of all groups
    groups: int  # the largest number that contributed to a step
    missing: int  # batches of groups that were away while the others went on

    @property
    def share(self) -> float:
        return self.batches / self.could if self.could else 0.0


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples that a loader of ours dealt."""

    committed: int  # at the newest commit, since the first step of the training
    repeated: int  # by how many the position in the data went back while the steps went on
    debt: int  # skipped so far, to be trained next


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the loss curve: step, time and loss."""

    step: int
    t: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """All results of a run."""

    run_dir: str
    began: float
    ended: float  # time of the newest event
    code: int | None  # exit code of the job; None: it goes on, or its end was not written
    verdict: str
    steps: int  # number of committed steps
    unlogged: int  # number of last steps that only the lighthouse knows, because the logs were cut short
    trained: tuple[float, float] | None  # times of the first and the last commit
    goodput: Goodput | None  # None: there are too few steps
    step_times: StepTimes | None
    samples: Samples | None  # None: the script chose its data itself
    slow: tuple[Slow, ...]
    dropped: int  # number of dropped steps
    redone: int  # number of steps that were reduced again
    rate: tuple[float, ...]  # batches per second, in equal intervals of `trained`
    groups: tuple[Group, ...]
    quorums: tuple[Quorum, ...]
    losses: tuple[Loss, ...]
    stood: float  # seconds without a commit because of the losses, beyond usual steps
    faults: tuple[Fault, ...]
    lineages: tuple[Lineage, ...]
    checkpoints: Checkpoints
    curve: tuple[Point, ...]
    errors: tuple[str, ...]
    events: int
    unreadable: int
    incomplete: tuple[str, ...]  # logs that a full disk cut short

    @property
    def bytes(self) -> float:
        return sum(group.bytes for group in self.groups)
