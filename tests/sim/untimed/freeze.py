"""Copies of machines, what is equal about them, and time that passes in them.

The machines of `torchft_x.core` are small classes of plain attributes, so one walk over the attributes does for all of
them. In this model it is always ``now == 0``: when time passes, every instant a machine remembers is moved into the past.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from torchft_x.core.admission.compatibility import CompatibilityCheck
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.commit.step import LocalVote, Step
from torchft_x.core.commit.two_phase import GroupVote, TwoPhaseCommit
from torchft_x.core.group.lease import HeldQuorum
from torchft_x.core.group.machine import Group
from torchft_x.core.group.phase import Progression
from torchft_x.core.lighthouse.grants import Grants
from torchft_x.core.lighthouse.journal_writer import JournalWriter
from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.lighthouse.next_quorum import QuorumTransition
from torchft_x.core.lighthouse.planned_pauses import PlannedPauses
from torchft_x.core.lighthouse.stragglers import Stragglers
from torchft_x.core.lighthouse.wait_notices import WaitNotices
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord, MemberTable
from torchft_x.core.membership.supervisors import SupervisorLiveness
from torchft_x.core.quorum.open_quorums import OpenQuorums
from torchft_x.core.restart.recover import RestartRecovery

LONG = 200.0
"""Seconds that pass at once, if time passes: longer than any lease with its margin."""

MACHINES: set[type] = {
    LossHandler, GroupVote, OpenQuorums, FinishedJob, Grants, Group, SupervisorLiveness, HeldQuorum, JournalWriter, Lighthouse, CompatibilityCheck,
    PlannedPauses, Progression, TwoPhaseCommit, MemberRecord, MemberTable, Step, Stragglers, QuorumTransition, RestartRecovery, QuorumState, WaitNotices,
}  # fmt: skip
"""Classes that are walked into. Anything else is a value: shared, and compared as it is."""

_VALUES: set[type] = set()  # classes of values that were met


def _nothing(_value: Any) -> Any:
    return None


# What does not matter for what a machine does next, or only in part: texts for people, counts nobody looks at,
# errors (which one is only told to people), and numbers that only grow and are given out afresh.
_REDUCED: dict[type, dict[str, Callable[[Any], Any]]] = {
    Lighthouse: dict.fromkeys(("_now", "_unix", "_config", "_decisions"), _nothing),
    QuorumTransition: dict.fromkeys(("_noted", "_unix", "_config", "_waits"), _nothing),
    FinishedJob: {
        "_heard": lambda heard: tuple(sorted(name for name, at in heard.items() if at < 0)),
        **dict.fromkeys(("_looked", "_told", "_held", "_lives", "departures"), _nothing),
    },
    JournalWriter: {"_hellos": _nothing, "_left": _nothing},
    QuorumState: {"broken": bool, **dict.fromkeys(("_number", "reached"), _nothing)},
    MemberRecord: {
        "lost": bool,
        "proof": bool,
        **dict.fromkeys(("probed_at", "heard", "place", "pace", "longest_step", "suspected"), _nothing),
    },
    MemberTable: {"_apart": _nothing, "_made": _nothing},  # the records say the same
    RestartRecovery: {"_config": _nothing},
    LossHandler: {"_config": _nothing},
    Stragglers: {"_groups": _nothing},  # only makes a member wait longer
    Grants: {"_config": _nothing},
    Group: {"_no_session": _nothing, "_end": bool, "_config": _nothing},
    Progression: dict.fromkeys(("now", "event", "_decisions"), _nothing),
    HeldQuorum: {"over": bool},
    Step: {
        "error": bool,
        "objection": bool,
        "_over": lambda over: over and over[0],
        "_suspects": _nothing,
        "_vote": lambda vote: vote and _vote(vote),
        "_open": lambda held: held and (_vote(held[0]), held[1]),
        "batches_committed": _nothing,
        "_too_few": _nothing,
    },
}


def _vote(vote: LocalVote) -> Any:
    return (vote.step, vote.quorum_id, vote.ok)


def register(kind: type, **reduced: Callable[[Any], Any]) -> type:
    """Make `kind` a class that is walked into, too."""
    MACHINES.add(kind)
    _REDUCED[kind] = reduced
    return kind


def _check_value(kind: type) -> None:
    """A machine that nobody has named here would be shared by all states, and each would see what the others did."""
    parameters = getattr(kind, "__dataclass_params__", None)
    frozen = issubclass(kind, (enum.Enum, BaseException, tuple)) or (parameters is not None and parameters.frozen)
    if kind.__module__.startswith(("torchft_x.", "tests.")) and not frozen:
        raise TypeError(f"{kind.__qualname__} is not a value: add it to MACHINES")
    _VALUES.add(kind)


def _attributes(thing: Any) -> list[str]:
    return list(type(thing).__slots__ if hasattr(type(thing), "__slots__") else vars(thing))


def clone(thing: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that shares only values."""
    memo = {} if memo is None else memo
    kind = type(thing)
    if kind in MACHINES:
        if id(thing) in memo:
            return memo[id(thing)]
        made = memo[id(thing)] = kind.__new__(kind)
        for name in _attributes(thing):
            setattr(made, name, clone(getattr(thing, name), memo))
        return made
    if kind is dict or kind is Counter:
        return kind({k: clone(v, memo) for k, v in thing.items()})
    if kind is list:
        return [clone(v, memo) for v in thing]
    if kind is set:
        return set(thing)
    if kind not in _VALUES:
        _check_value(kind)
    return thing


def key(thing: Any, seen: set[int] | None = None) -> Any:
    """Equal keys: the machines do the same from now on."""
    seen = set() if seen is None else seen
    kind = type(thing)
    if kind in MACHINES:
        if id(thing) in seen:
            return getattr(thing, "replica_id", None)
        seen.add(id(thing))
        reduced = _REDUCED.get(kind, {})
        return tuple(
            reduced[name](getattr(thing, name)) if name in reduced else key(getattr(thing, name), seen)
            for name in _attributes(thing)
        )
    if kind is dict or kind is Counter:
        return tuple((k, key(v, seen)) for k, v in sorted(thing.items()))
    if kind is list:
        return tuple(key(v, seen) for v in thing)
    if kind is set:
        return frozenset(thing)
    if isinstance(thing, BaseException):
        return type(thing).__name__
    if isinstance(thing, enum.Enum):
        return thing.name  # hash(Enum) is that of its name; tuples of names compare faster
    return thing


# --- time ------------------------------------------------------------------------------------------------------------


def age_group(group: Group) -> None:
    """A long time has passed for this group."""
    if group._sent_at is not None:
        group._sent_at = -LONG
    hold = group._hold
    hold.lease_until = -LONG
    if hold._promised_at is not None:
        hold._promised_at = -LONG
    hold._sent = dict.fromkeys(hold._sent, -LONG)


def age_lighthouse(lighthouse: Lighthouse, renewed: frozenset[str]) -> None:
    """A long time has passed for the lighthouse. `renewed`: those whose lease it has renewed meanwhile."""
    succession = lighthouse._succession
    lighthouse._started_at = succession._started_at = succession.takeover._started_at = -LONG
    endings = lighthouse._endings
    endings._heard = dict.fromkeys(endings._heard, -LONG)
    endings._took_over = None if endings._took_over is None else -LONG
    for record in lighthouse._roll:
        if record.lease_sent is not None and record.replica_id not in renewed:
            record.lease_sent = -LONG
        if record.join is not None:
            record.join = replace(record.join, since=-LONG)


def silence(lighthouse: Lighthouse, replica_ids: Collection[str]) -> None:
    """These have not been heard for longer than the heartbeat timeout, the others have. A `Tick` must follow."""
    for record in lighthouse._roll:
        record.heard = -LONG if record.replica_id in replica_ids else 0.0
