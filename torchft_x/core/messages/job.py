"""What goes into the machines of a job (`core.job.outcome`, `core.job.sidecars`) and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages.common import Note, Tick

# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupervisorHere:
    """A supervisor's stream stands. It watches over the lives of this group, on this node of it."""

    group: str
    host: str
    node: int = 0
    nodes: int = 1
    stream: int = 0  # named by the shell, and not used twice; 0: of a lighthouse before this one


@dataclass(frozen=True, slots=True)
class SupervisorGone:
    """That stream of this supervisor has ended."""

    group: str
    node: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True)
class LifeStarted:
    group: str
    attempt: int
    life: str  # token, as in core.types.Life


@dataclass(frozen=True, slots=True)
class LifeExited:
    group: str
    attempt: int
    life: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupRests:
    """Whether the group was drained: it is not started again until somebody asks for it."""

    group: str
    rests: bool


@dataclass(frozen=True, slots=True)
class SupervisorFinished:
    """The supervisor is done with its group and won't start it again. Final."""

    group: str
    code: int
    sentence: str
    node: int = 0


@dataclass(frozen=True, slots=True)
class GroupsChanged:
    """Whoever keeps the supervisors running says of which groups the job consists now, and which supervisors have ended for good."""

    groups: tuple[str, ...]
    ended: tuple[SupervisorFinished, ...] = ()


@dataclass(frozen=True, slots=True)
class QuorumIssued:
    """The life tokens of the members of the newest quorum; members without one (a peer's clients) are left out."""

    lives: frozenset[str]


@dataclass(frozen=True, slots=True)
class SidecarHere:
    """The stream of a sidecar's supervisor stands."""

    sidecar: str
    host: str
    stream: int = 0  # named by the shell, and not used twice


@dataclass(frozen=True, slots=True)
class SidecarGone:
    """That stream of it has ended."""

    sidecar: str
    stream: int = 0


@dataclass(frozen=True, slots=True)
class SidecarFinished:
    """Its supervisor is done with it: by itself (0), given up (not 0), or because it was told to."""

    sidecar: str
    code: int
    sentence: str


GroupEvent = SupervisorHere | SupervisorGone | LifeStarted | LifeExited | GroupRests | SupervisorFinished
SidecarEvent = SidecarHere | SidecarGone | SidecarFinished
RosterEvent = GroupEvent | SidecarEvent | GroupsChanged | QuorumIssued | Tick

# --- out --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TellStop:
    """Tell the group's supervisors to stop the group and to exit with this code."""

    group: str
    code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class StopSidecar:
    """Tell its supervisors to end it, and to exit with 0: how the job went is said elsewhere."""

    sidecar: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job has ended. Comes once, as the last effect of its `handle`: deliver the others, then exit with it."""

    code: int
    sentence: str


SidecarEffect = StopSidecar | Note
RosterEffect = TellStop | StopSidecar | Verdict | Note
