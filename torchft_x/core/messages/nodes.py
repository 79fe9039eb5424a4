"""Events and effects of the machine for groups over several nodes (`core.job.multi_node`).

A *session* is a supervisor's stream; its first event is `SupervisorHere`, its last `NodeGone`. Supervisors report their state
again after each reconnect, so events may repeat; the last one of a session counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, SupervisorHere
from torchft_x.core.messages.lighthouse import CloseSession, Refuse

# --- in ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The stream of this session has ended."""

    session: int


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The node runs nothing and waits for the attempt with this number, or a later one."""

    session: int
    attempt: int
    meeting: str = ""  # host:port at which the workers may meet; node 0 provides it


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """The node has taken the order to begin, so its part of the attempt may run."""

    session: int
    attempt: int
    attempt_token: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """No process of the node's part of the attempt is left. Code 0: all its workers finished well."""

    session: int
    attempt: int
    attempt_token: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDone:
    """The supervisor is done with the group, and nothing of it runs on the node. This is final."""

    session: int
    code: int
    sentence: str


NodeEvent = SupervisorHere | NodeGone | NodeReady | NodeStarted | NodeEnded | NodeDone | Tick

# --- out (besides the roster's AttemptStarted and AttemptExited, about the group as a whole) -----------------------


@dataclass(frozen=True, slots=True)
class SendBegin:
    session: int
    attempt: int
    attempt_token: str
    meeting: str


@dataclass(frozen=True, slots=True)
class SendAttemptOver:
    """Tell the node to end its part of this attempt, which is over. Code 0: it finished well on all nodes."""

    session: int
    attempt_token: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    session: int
    code: int
    sentence: str


NodeEffect = SendBegin | SendAttemptOver | SendStop | Refuse | CloseSession | AttemptStarted | AttemptExited | Note
