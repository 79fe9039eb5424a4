"""Values of the protocol. Frozen, comparable, free of clocks, sockets and tensors.

Words are those of docs/glossary.md: a *member* is one life of a replica group, named by its replica id
``<group id>:<nonce>``; a *state* is ``(step, committed_in)``.
Times are seconds as floats; ids are integers that only grow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from torchft_x.core.in_doubt import Settlement, settle


@dataclass(frozen=True, order=True, slots=True)
class State:
    """How far a member is: number of committed steps, and the quorum of the last commit (0: none yet).

    Compared step first. Two members may train from the same parameters only if their states are equal.
    """

    step: int = 0
    committed_in: int = 0

    def __str__(self) -> str:
        return f"step {self.step} (quorum {self.committed_in})"


@dataclass(frozen=True, order=True, slots=True)
class Life:
    """Orders the lives of one group (R2): a later attempt, else a later start, is the newer life."""

    attempt: int = 0
    started: float = 0.0  # unix seconds, on the group's own host
    token: str = ""  # random, made by whoever starts the process; a supervisor's exit report names it


@dataclass(frozen=True, slots=True)
class Prepared:
    """A reduced result this member may not forget alone (R12)."""

    quorum: int  # in which it was reduced
    step: int  # the state's step once it is committed
    digest: int  # guards its bits

    @property
    def state(self) -> State:
        """What a member stands at that commits it."""
        return State(self.step, self.quorum)


class JoinReason(str, Enum):
    """Why a member asks for a quorum."""

    NEW = "new"
    BOUNDARY = "boundary"  # the grant is used up, nothing else happened
    FAILED = "failed"  # its last step did not commit
    HEALED = "healed"
    REJOINED = "rejoined"  # its session or lease ended in between


@dataclass(frozen=True, slots=True)
class Member:
    """One member as it stands in a quorum, or asks to."""

    replica_id: str
    address: str = ""  # of its group server, http://host:port
    store_address: str = ""  # host:port/prefix of its TCPStore
    state: State = State()
    torn: bool = False  # a heal was half applied: it holds no complete state and can't be a source
    world_size: int = 1  # group world size
    shrink_only: bool = False
    commit_failures: int = 0  # in a row
    data: str = ""  # JSON object of a peer's client
    handles: tuple[str, ...] = ()  # reconfigure handles, one per group rank
    prepared: Prepared | None = None
    library: str = ""  # "torchft_x/<version>"; empty: a peer's client on the unary service
    carried: tuple[int, ...] = ()  # quorums it was a carrier of since it came to `state`; see core.in_doubt
    votes_late: bool = False  # its script reduces after backward, so that no step can be decided there

    @property
    def group_id(self) -> str:
        """The part of the replica id that survives restarts."""
        return group_of(self.replica_id)

    @property
    def is_ours(self) -> bool:
        """Whether it runs this library, and not the peer's."""
        return self.library.startswith("torchft_x/")


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part in a quorum: whose gradients count, and its own number among them."""

    rank: int | None  # None: it contributes zeros
    contributors: tuple[str, ...]  # replica ids of those whose gradients count, in the order of their numbers

    @property
    def size(self) -> int:
        """Number of contributors."""
        return len(self.contributors)


@dataclass(frozen=True, slots=True)
class Computed:
    """Where and for which part a rank's local gradients were computed."""

    state: State
    part: Part


@dataclass(frozen=True, slots=True)
class Quorum:
    """An ordered list of members with an id. The same value goes to every member."""

    id: int  # never repeats (R1)
    config_id: int  # id at which the members last changed or failed; process groups are rebuilt when it changes
    number: int  # small, counted within the lighthouse's life; for people
    members: tuple[Member, ...]  # in the order of their replica ranks
    created: float = 0.0  # unix seconds
    granted_through: int = 0  # highest step the members may run in it
    lease: float = 0.0  # seconds; counted by each member from the sending of its own request
    _settled: Settlement | None = field(default=None, init=False, repr=False, compare=False)  # worked out once

    def member(self, replica_id: str) -> Member | None:
        for m in self.members:
            if m.replica_id == replica_id:
                return m
        return None

    @property
    def settled(self) -> Settlement:
        """What its members stand at once prepared results are dealt with (R14)."""
        if self._settled is None:
            object.__setattr__(self, "_settled", settlement(self.members))
        assert self._settled is not None
        return self._settled

    def knowing(self, settled: Settlement) -> Quorum:
        """Itself; what its members stand at is known, and not worked out again."""
        object.__setattr__(self, "_settled", settled)
        return self

    @property
    def top(self) -> State:
        """Newest complete state among the members."""
        return self.settled.top

    @property
    def carriers(self) -> tuple[Member, ...]:
        """Members at the top: healing sources, and those whose gradients count."""
        return self.settled.carriers


def settlement(members: tuple[Member, ...]) -> Settlement:
    """What these members stand at once prepared results are dealt with (R14)."""
    if [m for m in members if m.prepared]:
        return settle(members, State())
    whole = [m for m in members if not m.torn]
    if not whole:
        return Settlement(State(), ())
    # where nobody has prepared anything. Of numbers: comparing ten thousand states takes ten times as long
    step = max([m.state.step for m in whole])
    committed_in = max([m.state.committed_in for m in whole if m.state.step == step])
    carriers = [m for m in whole if m.state.committed_in == committed_in and m.state.step == step]
    return Settlement(State(step, committed_in), tuple(carriers))


def group_of(replica_id: str) -> str:
    """``train_ddp_0:5f0c...`` -> ``train_ddp_0``."""
    return replica_id.rsplit(":", 1)[0]


_REPLICA_ID = re.compile(r"([\w./-]+):[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


BEFORE_END = "before the end of the training"
"""When a group leaves that was drained or preempted, or whose script has raised."""


def readable(sentence: str) -> str:
    """Replica ids in it as people know the groups: ``1:b6e4153e-12f2-... is lost`` -> ``group 1 is lost``."""
    return _REPLICA_ID.sub(r"group \1", sentence)


def group_number(replica_id: str) -> int | None:
    """The number a group id ends in (``train_ddp_12:...`` -> 12), or None. Order groups by it, never as text."""
    group = group_of(replica_id)
    digits = group[len(group.rstrip("0123456789")) :]
    return int(digits) if digits else None


def by_rank(members: Iterable[Member]) -> tuple[Member, ...]:
    """Sort members by replica rank, which is a member's place in this order.

    Group 2 comes before group 10. The peer's clients sort replica ids as text, so all do where one takes part.
    """
    found = sorted(members, key=lambda m: m.replica_id)
    if all(m.is_ours for m in found):
        found.sort(key=lambda m: (m.group_id.rstrip("0123456789"), group_number(m.replica_id) or 0))
    return tuple(found)


def group_names(replica_ids: Iterable[str]) -> set[str]:
    """Of their groups, ids and numbers: a supervisor names its group by either."""
    return {name for r in replica_ids for name in (group_of(r), str(group_number(r)))}


def listed(names: Collection[str], most: int = 8) -> str:
    """``a, b, c and 9 more``: a sentence stays a sentence with a thousand groups."""
    shown = list(names)[:most]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
