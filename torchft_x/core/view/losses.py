"""A loss, and what has become of it since: phase by phase, out of what the lighthouse sees and what members tell of themselves.

The same phases as in a report (`torchft_x.observe.run.values`), which knows them from the events of all processes.

A moment is dated by when it is heard less how long ago it was, so it may seem later than it was, by as long as a message takes;
and a quorum is noted a moment after it is sent. What can't be later than another thing isn't shown so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchft_x.core.view.facts import COMMITTED, HEALED, RELEASED, RESTARTED, Moment


@dataclass(frozen=True, kw_only=True, slots=True)
class LossEntry:
    """A member of the quorum that nobody waits for any more."""

    t: float
    group: str
    replica_id: str
    cause: str  # one of core.lighthouse.loss.CAUSES
    reason: str  # a sentence
    exit: str = ""  # how its supervisor says that it ended
    step: int
    quorum: int  # number of the quorum that it was in
    quorum_id: int = 0  # the whole id of that one
    contributed: int = 0  # groups whose gradients counted in it
    # What has happened since, in seconds after `t`; None: it has not, or nobody has told.
    released: float | None = None  # the last of the others was out of the collectives in which it waited
    regrouped: float | None = None  # the next quorum
    next_id: int = 0  # the whole id of that one
    committed: float | None = None  # the others' first commit since
    restarted: float | None = None  # its next life is ready to join
    rejoined: float | None = None  # its group is in a quorum again
    healed: float | None = None  # and has copied the state
    back: float | None = None  # its first commit
    whole: float | None = None  # a step was committed by as many groups as before
    stood: float | None = None  # from the last commit before to the first one since: of who was first


def of_another(loss: LossEntry, moment: Moment, at: float) -> LossEntry:
    """A member of another group tells of a moment, at unix seconds `at`. The same object: it says nothing about this loss."""
    since = max(0.0, at - loss.t)
    if moment.what == RELEASED and moment.quorum == loss.quorum_id:
        if loss.released is None or since > loss.released:
            return replace(loss, released=since)
    elif _commits_after(loss, moment):
        since = max(since, loss.regrouped or 0.0)
        if loss.committed is None or since < loss.committed:
            loss = replace(loss, committed=since, stood=moment.took or None)
        return _whole(loss, moment, since)
    return loss


def of_its_own(loss: LossEntry, replica_id: str, moment: Moment, at: float) -> LossEntry:
    """The same of a life of the group that was lost."""
    since = max(0.0, at - loss.t)
    if moment.what == RESTARTED and replica_id != loss.replica_id and loss.restarted is None:
        return replace(loss, restarted=since if loss.rejoined is None else min(since, loss.rejoined))
    if loss.rejoined is None:
        return loss
    if moment.what == HEALED and loss.healed is None and at > loss.t:  # not before it was lost
        return replace(loss, healed=max(since, loss.rejoined))
    if _commits_after(loss, moment):
        since = max(since, loss.rejoined, loss.healed or 0.0)
        if loss.back is None:
            loss = replace(loss, back=since, whole=None if loss.whole is None else max(since, loss.whole))
        return _whole(loss, moment, since)
    return loss


def _commits_after(loss: LossEntry, moment: Moment) -> bool:
    return moment.what == COMMITTED and loss.regrouped is not None and moment.quorum >= loss.next_id


def _whole(loss: LossEntry, moment: Moment, since: float) -> LossEntry:
    if loss.whole is not None or not 0 < loss.contributed <= moment.participants:
        return loss
    return replace(loss, whole=max(since, loss.back or 0.0))
