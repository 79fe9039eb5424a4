"""Events and effects of the machines of a job (`core.job.outcome`, `core.job.sidecars`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from torchft_x.core.messages import Note, Tick

# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupervisorHere:
    """A supervisor's stream is established. The supervisor watches over the attempts of `group` on its node `node`.

    `sidecar`, here and below: the supervisor is a sidecar's, and `group` is the sidecar's name."""

    group: str
    host: str
    node: int = 0
    nodes: int = 1
    stream: int = 0  # number given by the shell, never reused; 0: a stream of an earlier lighthouse
    incarnation: str = ""  # random, one per supervisor process of several nodes: a restarted one knows of no attempt
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class SupervisorGone:
    """This stream of the supervisor has ended."""

    group: str
    node: int = 0
    stream: int = 0
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    group: str
    attempt: int
    attempt_token: str  # as in `core.types.AttemptId`
    stream: int = 0  # stream of the supervisor that reports; 0: a group over several nodes


@dataclass(frozen=True, slots=True)
class AttemptExited:
    """The process with this attempt token has exited. This proves its death."""

    group: str
    attempt: int
    attempt_token: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupRests:
    """The supervisor reports whether the group is drained, so that it is not restarted until a person resumes it."""

    group: str
    rests: bool


@dataclass(frozen=True, slots=True)
class SupervisorFinished:
    """The supervisor is done with its group and will not restart it. This is final.

    Code 0 of a sidecar: it ended by itself, or was told to; else it was given up."""

    group: str
    code: int
    sentence: str
    node: int = 0
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class GroupsChanged:
    """The keeper of the supervisors reports the job's groups and the supervisors that have ended for good."""

    groups: tuple[str, ...]
    ended: tuple[SupervisorFinished, ...] = ()


@dataclass(frozen=True, slots=True)
class QuorumIssued:
    """A quorum was issued. The tokens are those of its members, without those that have none (torchft's clients)."""

    attempt_tokens: frozenset[str]


GroupEvent = SupervisorHere | SupervisorGone | AttemptStarted | AttemptExited | GroupRests | SupervisorFinished
SidecarEvent = SupervisorHere | SupervisorGone | SupervisorFinished
RosterEvent = GroupEvent | GroupsChanged | QuorumIssued | Tick


def is_of_sidecar(event: RosterEvent) -> TypeGuard[SidecarEvent]:
    return isinstance(event, (SupervisorHere, SupervisorGone, SupervisorFinished)) and event.sidecar


# --- out --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TellStop:
    """Tell the group's supervisors to stop the group and exit with this code. A sidecar's code is always 0."""

    group: str
    code: int
    sentence: str
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """An order of a person to all supervisors of a group."""

    kind: str  # kill, drain or resume
    group: str
    attempt_token: str  # token of the only attempt that a kill may end; '': any
    sentence: str  # reason, for the supervisor's log


@dataclass(frozen=True, slots=True)
class Verdict:
    """End the lighthouse process with this exit code, because the job has ended.

    A `Verdict` comes once, as the last effect of its `handle`: deliver the others first."""

    code: int
    sentence: str


RosterEffect = TellStop | Verdict | Note
