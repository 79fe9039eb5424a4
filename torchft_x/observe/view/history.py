"""Record a job's newest quorums, losses and refusals, with reasons in words, and count all of them.

The lighthouse's shell reports what its machine has decided. Nothing is looked up later, and all sizes are bounded.

A loss is followed phase by phase, from observations of the lighthouse and reports of members. The phases are those of a
report (`torchft_x.observe.run.values`), which takes them from the events of all processes. The time of a moment is its
arrival less its age, so it may seem later than it was, by the duration of a message. A quorum is recorded a moment after it
is sent. Times are therefore clamped to the order in which the phases must follow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from torchft_x.core.messages import Note
from torchft_x.core.types import Quorum, by_number, group_of, listed
from torchft_x.observe.view.facts import COMMITTED, HEALED, RELEASED, RESTARTED, Durations, Moment

KEPT = 100
"""Number of quorums and of losses that are kept; a fifth as many refusals are kept."""
_NAMED = 16  # most groups that one entry names
_SAME = 10.0  # seconds within which a supervisor's report of an exit explains a loss


@dataclass(eq=False, kw_only=True, slots=True)
class LossEntry:
    """The loss of a member of the quorum, for which nobody waits any more, and its phases, which come one by one."""

    t: float  # unix seconds
    group: str
    replica_id: str
    cause: str  # one of `core.lighthouse.waiting.CAUSES`
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

    def record_other(self, moment: Moment, at: float) -> None:
        """Record a moment of another group's member at `at` (unix seconds), if it belongs to this loss."""
        since = max(0.0, at - self.t)
        if moment.what == RELEASED and moment.quorum == self.quorum_id:
            self.released = max(since, self.released or 0.0)
        elif self._is_later_commit(moment):
            since = max(since, self.regrouped or 0.0)
            if self.committed is None or since < self.committed:
                self.committed, self.stood = since, moment.took or None
            self._record_whole(moment, since)

    def record_own(self, replica_id: str, moment: Moment, at: float) -> None:
        """Record a moment of the lost group's member at `at` (unix seconds), if it belongs to this loss."""
        since = max(0.0, at - self.t)
        if moment.what == RESTARTED and replica_id != self.replica_id and self.restarted is None:
            self.restarted = since if self.rejoined is None else min(since, self.rejoined)
        elif self.rejoined is None:
            return
        elif moment.what == HEALED and self.healed is None and at > self.t:  # a heal before the loss does not count
            self.healed = max(since, self.rejoined)
        elif self._is_later_commit(moment):
            since = max(since, self.rejoined, self.healed or 0.0)
            if self.back is None:
                self.back, self.whole = since, None if self.whole is None else max(since, self.whole)
            self._record_whole(moment, since)

    def _is_later_commit(self, moment: Moment) -> bool:
        return moment.what == COMMITTED and self.regrouped is not None and moment.quorum >= self.next_id

    def _record_whole(self, moment: Moment, since: float) -> None:
        if self.whole is None and 0 < self.contributed <= moment.participants:
            self.whole = max(since, self.back or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuorumEntry:
    """A quorum with other members than the one before, or after a failed step. `t`: unix seconds."""

    t: float
    id: int
    number: int
    step: int
    members: int
    healing: int
    joined: tuple[str, ...]  # group ids
    gone: tuple[str, ...]  # group ids
    reason: str
    waited: float  # seconds from the first ask to the quorum


@dataclass(frozen=True, slots=True)
class RefusalEntry:
    t: float
    who: str  # replica id; '': unknown
    sentence: str


class History:
    """Newest events of a job, with counts and durations. Times are unix seconds."""

    def __init__(self) -> None:
        self.quorums: deque[QuorumEntry] = deque(maxlen=KEPT)
        self.losses: deque[LossEntry] = deque(maxlen=KEPT)
        self.refusals: deque[RefusalEntry] = deque(maxlen=KEPT // 5)
        self.count: Counter[str] = Counter()  # quorums, regroupings, joins, refusals, lineages, undone steps
        self.causes: Counter[str] = Counter()  # losses by cause
        self.wait = Durations((0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60))  # from the first ask to the quorum
        self.recovery = Durations((0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 60))  # from a loss to the next quorum
        self.rejoin = Durations((0.1, 0.5, 1, 2, 5, 10, 30, 60, 300))  # from a loss to the group's return
        self._groups: frozenset[str] = frozenset()  # groups of the newest quorum
        self._sentence = ""  # reason of the next quorum if it begins a new lineage
        self._out: dict[str, LossEntry] = {}  # group -> its newest loss, until the group is back
        self._waiting: list[LossEntry] = []  # losses that no quorum has followed yet
        self._contributed = 0  # number of groups in the newest reported commit

    def issued(self, quorum: Quorum, waited: float, t: float) -> None:
        """Record that a quorum was sent, `waited` seconds after the first ask."""
        self.count["quorums"] += 1
        self.wait.add(waited)
        if quorum.config_id == quorum.id:
            self._regrouped(quorum, waited, t)

    def took_over(self, quorum: Quorum) -> None:
        """Start from a quorum that was running when this lighthouse started."""
        self._groups = frozenset(m.group_id for m in quorum.members)

    def noted(self, note: Note, quorum: Quorum | None, step: int, t: float) -> None:
        """Record a note of the machine. `quorum`: its present quorum, which has reached `step`."""
        match note.event:
            case "joined":
                self.count["joins"] += 1
            case "new_lineage":
                self.count["lineages"] += 1
                self.count["undone"] += note.steps or 0
                self._sentence = note.text
            case "adopted" if quorum is not None:
                self.took_over(quorum)
            case "member_lost" if note.replica_id:
                self._lose(note, quorum, step, t)

    def refused(self, who: str, sentence: str, t: float) -> None:
        self.count["refusals"] += 1
        self.refusals.append(RefusalEntry(t, who, sentence))

    def exited(self, group: str, reason: str, t: float) -> None:
        """Add a supervisor's report of how an attempt ended to the recent losses of its group."""
        for loss in self.losses:
            if loss.group == group and not loss.exit and t - loss.t < _SAME:
                loss.exit = reason

    def record_moments(self, replica_id: str, moments: Iterable[Moment], t: float) -> None:
        """Record the moments that a member reports at `t`."""
        for moment in moments:
            self._unfold(replica_id, moment, t - moment.ago)
            if moment.what == COMMITTED and moment.participants:
                self._contributed = moment.participants

    @property
    def out(self) -> dict[str, LossEntry]:
        """Groups that were lost and are not back, each with its newest loss."""
        return self._out

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _lose(self, note: Note, quorum: Quorum | None, step: int, t: float) -> None:
        self.causes[note.cause] += 1
        number = quorum.number if quorum is not None else 0
        loss = LossEntry(
            t=t,
            group=group_of(note.replica_id),
            replica_id=note.replica_id,
            cause=note.cause,
            reason=note.text,
            step=step,
            quorum=number,
            quorum_id=quorum.id if quorum is not None else 0,
            contributed=self._contributed,
        )
        self.losses.append(loss)
        self._waiting = [*self._waiting[1 - KEPT :], loss]
        self._out[loss.group] = loss
        while len(self._out) > KEPT:
            del self._out[next(iter(self._out))]

    def _regrouped(self, quorum: Quorum, waited: float, t: float) -> None:
        self.count["regroupings"] += 1
        groups = frozenset([m.group_id for m in quorum.members])
        back = groups & self._out.keys()  # a group may return with a new attempt before there was a quorum without it
        joined, gone = by_number((groups - self._groups) | back), by_number(self._groups - groups)
        for loss in self._waiting:
            loss.regrouped, loss.next_id = t - loss.t, quorum.id
            self.recovery.add(loss.regrouped)
        self._waiting = []
        for name in back:
            loss = self._out.pop(name)
            loss.rejoined = t - loss.t
            self.rejoin.add(loss.rejoined)
        self.quorums.append(
            QuorumEntry(
                t=t,
                id=quorum.id,
                number=quorum.number,
                step=quorum.top.step,
                members=len(quorum.members),
                healing=len(quorum.members) - len(quorum.carriers),
                joined=tuple(joined[:_NAMED]),
                gone=tuple(gone[:_NAMED]),
                reason=self._why(joined, gone),
                waited=waited,
            )
        )
        self._groups, self._sentence = groups, ""

    def _why(self, joined: list[str], gone: list[str]) -> str:
        if self._sentence:
            return self._sentence
        if not self._groups:
            return f"the first quorum: {_groups(joined)}"
        parts = []
        lost = [name for name in gone if name in self._out and self._out[name].cause != "left"]
        left = [name for name in gone if name not in lost]
        if lost:
            parts.append(f"{_groups(lost)} {'was' if len(lost) == 1 else 'were'} lost")
        if left:
            parts.append(f"{_groups(left)} left")
        if joined:
            parts.append(f"{_groups(joined)} joined")
        return ", ".join(parts) or "the same groups: a step had failed, or one of them has healed or come back"

    def _unfold(self, replica_id: str, moment: Moment, at: float) -> None:
        """Apply a moment to all losses of other groups, and to the newest loss of the member's own group."""
        group, own = group_of(replica_id), True
        for loss in reversed(self.losses):
            if loss.group != group:
                loss.record_other(moment, at)
            elif own:
                loss.record_own(replica_id, moment, at)
                own = False


def _groups(names: Iterable[str]) -> str:
    known = list(names)
    return f"group{'s' if len(known) > 1 else ''} {listed(known)}"
