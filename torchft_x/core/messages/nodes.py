"""What goes into the assembly machine (`core.job.multi_node`) and what comes out.

A *session* is a supervisor's stream; its first event is `NodeHere`, its last `NodeGone`. Supervisors say again what is
true after each reconnect, so events repeat themselves; the last one of a session counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import LifeExited, LifeStarted

# --- in ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHere:
    """A node's supervisor says hello."""

    session: int
    group: str
    node: int  # 0 .. nodes - 1
    nodes: int
    incarnation: str  # random, one per supervisor process: a restarted one knows nothing of what its predecessor ran
    host: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """That stream has ended."""

    session: int


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The node runs nothing and waits for this life (or a later one)."""

    session: int
    attempt: int
    meeting: str = ""  # host:port where the workers may meet; node 0 brings it


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """The node has taken the order to begin; its part may run."""

    session: int
    attempt: int
    life: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """No process of the node's part is left. Code 0: all its workers finished well."""

    session: int
    attempt: int
    life: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDone:
    """The supervisor is done with the group, and nothing of it runs on the node. Final."""

    session: int
    code: int
    sentence: str


NodeEvent = NodeHere | NodeGone | NodeReady | NodeStarted | NodeEnded | NodeDone | Tick

# --- out (besides the roster's LifeStarted and LifeExited, about the group as a whole) -----------------------------------


@dataclass(frozen=True, slots=True)
class SendBegin:
    session: int
    attempt: int
    life: str
    meeting: str


@dataclass(frozen=True, slots=True)
class SendLifeOver:
    """The group's life is over: end what still runs of it. Code 0: it has finished well, on all nodes."""

    session: int
    life: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    session: int
    code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class RefuseNode:
    """Answer this hello with a sentence, then close."""

    session: int
    sentence: str


@dataclass(frozen=True, slots=True)
class CloseStream:
    """A newer stream of the same node has replaced this one."""

    session: int


NodeEffect = SendBegin | SendLifeOver | SendStop | RefuseNode | CloseStream | LifeStarted | LifeExited | Note
