"""Values of the protocol: frozen, comparable, and free of clocks, sockets and tensors.

The terms are those of docs/glossary.md. A *member* is one attempt of a replica group, named by its replica id
``<group id>:<nonce>``. A *state* is ``(step, committed_in)``.
Times are seconds as floats; ids are integers that only grow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from torchft_x.core.in_doubt import Settlement, settle

FORMATS = ("int8", "int4", "fp8")
"""Names of the wire formats for values, for code that does not load torch. `comm.quantized.format` defines them."""
Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, half-open ranges of integers (from, to), none of them empty and none touching the next."""


@dataclass(frozen=True, order=True, slots=True)
class State:
    """State of a member: number of committed steps, and id of the quorum of the last commit (0: none yet).

    States are compared by step first. Two members may train from the same parameters only if their states are equal.
    """

    step: int = 0
    committed_in: int = 0

    def __str__(self) -> str:
        return f"step {self.step} (quorum {self.committed_in})"


@dataclass(frozen=True, order=True, slots=True)
class AttemptId:
    """Identity of an attempt, by which the attempts of one group are ordered (R2): by number, then by start.

    The start can't come first: a group that moved to a host whose clock is behind would be fenced for good.
    """

    number: int = 0  # of the attempt, from 0
    started: float = 0.0  # unix seconds, on the group's own host
    token: str = ""  # random, made by the starter of the process; a supervisor's exit report names it


@dataclass(frozen=True, slots=True)
class Prepared:
    """A reduced result that a member may not forget alone (R12)."""

    quorum: int  # id of the quorum in which it was reduced
    step: int  # the state's step once the result is committed
    digest: int  # digest of the result's bits

    @property
    def state(self) -> State:
        """State of a member that has committed the result."""
        return State(self.step, self.quorum)


class JoinReason(str, Enum):
    """Reason for which a member asks for a quorum."""

    NEW = "new"
    BOUNDARY = "boundary"  # the grant is used up, and nothing else happened
    FAILED = "failed"  # the last step did not commit
    HEALED = "healed"
    REJOINED = "rejoined"  # the session or lease ended in between


@dataclass(frozen=True, slots=True)
class Member:
    """One member as listed in a quorum or in its own join."""

    replica_id: str
    address: str = ""  # address of the group server, http://host:port
    store_address: str = ""  # host:port/prefix of the group's TCPStore
    state: State = State()
    torn: bool = False  # a heal was half applied: the member holds no complete state and can't be a source
    world_size: int = 1  # group world size
    shrink_only: bool = False
    commit_failures: int = 0  # failed commits in a row
    data: str = ""  # JSON object of a torchft client
    handles: tuple[str, ...] = ()  # reconfigure handles, one per group rank
    prepared: Prepared | None = None
    library: str = ""  # "torchft_x/<version>"; empty: a torchft client on the unary service
    carried: tuple[int, ...] = ()  # quorums that it carried since it reached `state`; used by `core.in_doubt`
    votes_late: bool = False  # the script reduces after backward, so backward can't decide a step
    held: Ranges = ()  # slots of the failed step whose gradients all ranks keep (`core.data.deal`)
    weight: int = 1  # weight in the sharing of slots

    @property
    def group_id(self) -> str:
        """Group id: the part of the replica id that survives restarts."""
        return group_of(self.replica_id)

    @property
    def is_ours(self) -> bool:
        """Whether the member runs this library and not torchft."""
        return self.library.startswith("torchft_x/")


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part in a quorum: the members whose gradients count, and its own number among them."""

    rank: int | None  # own number; None: the rank contributes zeros
    contributors: tuple[str, ...]  # replica ids of members whose gradients count, in the order of their numbers

    @property
    def size(self) -> int:
        """Number of contributors."""
        return len(self.contributors)


@dataclass(frozen=True, slots=True)
class Computed:
    """State, part and slots for which a rank's local gradients were computed."""

    state: State
    part: Part
    slots: Ranges | None = None  # slots of the data (`core.data`); None: the script chooses its data itself


@dataclass(frozen=True, slots=True)
class Quorum:
    """An ordered list of members with an id. The same value goes to every member."""

    id: int  # never repeats (R1)
    config_id: int  # id at which the members last changed or failed; process groups are rebuilt when it changes
    number: int  # small, counted by this lighthouse's process; for people
    members: tuple[Member, ...]  # in the order of their replica ranks
    created: float = 0.0  # unix seconds
    granted_through: int = 0  # highest step the members may run in it
    lease: float = 0.0  # seconds; each member counts them from the sending of its own request

    def member(self, replica_id: str) -> Member | None:
        for m in self.members:
            if m.replica_id == replica_id:
                return m
        return None

    @property
    def settled(self) -> Settlement:
        """Settlement of the members, with prepared results dealt with (R14)."""
        return settle(self.members, State())

    @property
    def top(self) -> State:
        """Newest complete state among the members."""
        return self.settled.top

    @property
    def carriers(self) -> tuple[Member, ...]:
        """Members at the top, from which the others heal. Gradients count of participants only (`heal.participation`)."""
        return self.settled.carriers


def group_of(replica_id: str) -> str:
    """Return the group id of a replica id: ``train_ddp_0:5f0c...`` -> ``train_ddp_0``."""
    return replica_id.rsplit(":", 1)[0]


_REPLICA_ID = re.compile(r"([\w./-]+):[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


BEFORE_END = "before the end of the training"
"""Clause for when a group leaves that was drained or preempted, or whose script has raised."""


def readable(sentence: str) -> str:
    """Replace replica ids by groups' names for people: ``1:b6e4153e-12f2-... is lost`` -> ``group 1 is lost``."""
    return _REPLICA_ID.sub(r"group \1", sentence)


def group_number(replica_id: str) -> int | None:
    """Return the number that ends a group id (``train_ddp_12:...`` -> 12), or None. Order groups by it, not as text."""
    group = group_of(replica_id)
    digits = group[len(group.rstrip("0123456789")) :]
    return int(digits) if digits else None


def by_number(groups: Iterable[str]) -> list[str]:
    """Sort group ids by number: 2 before 10, and ids without a number last."""
    numbers = {group: group_number(f"{group}:") for group in groups}
    return sorted(numbers, key=lambda group: (numbers[group] is None, numbers[group] or 0, group))


def by_rank(members: Iterable[Member]) -> tuple[Member, ...]:
    """Sort members by replica rank, which is a member's index in this order.

    Group 2 comes before group 10. torchft's clients sort replica ids as text.
    """
    found = sorted(members, key=lambda m: m.replica_id)
    if all(m.is_ours for m in found):
        found.sort(key=lambda m: (m.group_id.rstrip("0123456789"), group_number(m.replica_id) or 0))
    return tuple(found)


def group_names(replica_ids: Iterable[str]) -> set[str]:
    """Return the ids and numbers of these members' groups: a supervisor names its group by either."""
    return {name for r in replica_ids for name in (group_of(r), str(group_number(r)))}


def listed(names: Collection[str], most: int = 8) -> str:
    """Return ``a, b, c and 9 more``, so that a sentence stays readable with a thousand groups."""
    shown = list(names)[:most]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
