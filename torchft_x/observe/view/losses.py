"""Follow a loss phase by phase, from observations of the lighthouse and reports of members.

The phases are those of a report (`torchft_x.observe.run.values`), which takes them from the events of all processes.

The time of a moment is its arrival less its age, so it may seem later than it was, by the duration of a message. A
quorum is recorded a moment after it is sent. Times are therefore clamped to the order in which the phases must follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchft_x.observe.view.facts import COMMITTED, HEALED, RELEASED, RESTARTED, Moment


@dataclass(frozen=True, kw_only=True, slots=True)
class LossEntry:
    """The loss of a member of the quorum, for which nobody waits any more, and its phases."""

    t: float  # unix seconds
    group: str
    replica_id: str
    cause: str  # one of `core.lighthouse.loss.CAUSES`
    reason: str  # a sentence
    exit: str = ""  # how the member ended, as its supervisor reports
    step: int
    quorum: int  # number of the member's quorum
    quorum_id: int = 0  # id of that quorum
    contributed: int = 0  # number of groups whose gradients counted in that quorum
    # Phases since the loss, in seconds after `t`; None: not reached, or not reported.
    released: float | None = None  # the last of the others left the collectives in which it waited
    regrouped: float | None = None  # the next quorum was issued
    next_id: int = 0  # id of that quorum
    committed: float | None = None  # the others made their first commit
    restarted: float | None = None  # the group's next attempt was ready to join
    rejoined: float | None = None  # the group was in a quorum again
    healed: float | None = None  # the group had copied the state
    back: float | None = None  # the group made its first commit
    whole: float | None = None  # a step was committed by as many groups as before
    stood: float | None = None  # duration from the last commit before to the first since, at the group that was first


def of_another(loss: LossEntry, moment: Moment, at: float) -> LossEntry:
    """Return the loss after a moment of another group's member at `at` (unix seconds); unchanged if unrelated."""
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
    """Return the loss after a moment of the lost group's member at `at` (unix seconds); unchanged if unrelated."""
    since = max(0.0, at - loss.t)
    if moment.what == RESTARTED and replica_id != loss.replica_id and loss.restarted is None:
        return replace(loss, restarted=since if loss.rejoined is None else min(since, loss.rejoined))
    if loss.rejoined is None:
        return loss
    if moment.what == HEALED and loss.healed is None and at > loss.t:  # a heal before the loss does not count
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
