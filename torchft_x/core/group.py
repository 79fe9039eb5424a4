"""The group server's machine: gathers its ranks' asks into one join, spreads the quorum, counts the votes.

A group is one member. It is `asking` from the moment all its ranks have asked until the quorum arrives; in between it
is frozen (R4). A join belongs to a session (R3), so each new session gets it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.ballot import Ballot, Counted, Rejected
from torchft_x.core.messages import (
    AnswerQuorum,
    AnswerVote,
    Ask,
    CallGone,
    Depart,
    FailCalls,
    FencedArrived,
    GroupEffect,
    GroupEvent,
    Note,
    OverArrived,
    PushEnd,
    PushOver,
    QuorumArrived,
    RefusedArrived,
    SendJoin,
    SendLeave,
    SessionDown,
    SessionUp,
    Vote,
)
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State
from torchft_x.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """Who this group is. Raises `ConfigError` naming the field."""

    replica_id: str
    address: str
    """Of the group server, http://host:port."""
    store_address: str
    world_size: int
    library: str = ""
    life: Life = Life()
    data: str = ""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}, a group has at least one rank.")
        if not self.replica_id:
            raise ConfigError("replica_id is empty.")


class Group:
    """The machine. Ranks are 0..world_size-1; calls are the shell's numbers for open requests."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config  # fixed
        self.state = State()  # as last told by the ranks
        self.torn = False  # as last told by the ranks
        self.quorum: Quorum | None = None  # newest that arrived
        self.lease_until = 0.0  # counted from the sending of the join that the quorum answered
        self._asks: dict[int, Ask] = {}  # by rank; complete and unanswered: the group is frozen
        self._asked_at: float | None = None  # when the join was sent on the present session; None: not sent
        self._connected = False  # a session stands
        self._metadata: dict[int, str] = {}  # checkpoint metadata by rank, as last told
        self._over: OverArrived | None = None  # set when the quorum in hand has lost a member
        self._missed = False  # a quorum came that not all ranks took: the others may be waiting in a collective
        self._ended: PushEnd | None = None  # fenced or refused; final
        self._ballot = Ballot(config.world_size)  # in hand

    def __repr__(self) -> str:
        q = f"q{self.quorum.number}" if self.quorum else "none"
        return f"Group({self.config.replica_id}, {self.state}, quorum {q}, {len(self._asks)} asks, {self._ballot})"

    @property
    def asking(self) -> bool:
        """All ranks have asked and wait (R4)."""
        return len(self._asks) == self.config.world_size

    def checkpoint_metadata(self, rank: int) -> str | None:
        """Where this rank's state is served, or None if it has never asked."""
        return self._metadata.get(rank)

    def handle(self, event: GroupEvent, now: float) -> list[GroupEffect]:
        """Take one event at `now` (monotonic seconds) and return what is to be done."""
        if isinstance(event, Ask):
            return self._ask(event, now)
        if isinstance(event, Vote):
            return self._vote(event, now)
        if isinstance(event, CallGone):
            return self._call_gone(event.call)
        if isinstance(event, QuorumArrived):
            return self._quorum_arrived(event.quorum, now)
        if isinstance(event, OverArrived):
            return self._over_arrived(event)
        if isinstance(event, SessionUp):
            self._connected, self._asked_at = True, None
            return self._maybe_join(now)
        if isinstance(event, SessionDown):
            self._connected, self._asked_at = False, None
            return []
        if isinstance(event, FencedArrived):
            return self._end(f"{self.config.replica_id} is fenced: {event.by}, a newer life of the group, runs.", True)
        if isinstance(event, RefusedArrived):
            return self._end(event.sentence, False)
        if isinstance(event, Depart):
            return [SendLeave(self.state)] if self._connected and self._ended is None else []
        return []

    # --- asking ----------------------------------------------------------------------------------------------------------

    def _ask(self, ask: Ask, now: float) -> list[GroupEffect]:
        if self._ended is not None:
            return [FailCalls((ask.call,), self._ended.sentence, retry=False)]
        if not 0 <= ask.rank < self.config.world_size:
            sentence = f"group rank {ask.rank} asked in a group of {self.config.world_size}; check RANK and WORLD_SIZE."
            return [FailCalls((ask.call,), sentence, retry=False)]
        effects: list[GroupEffect] = []
        replaced = self._asks.get(ask.rank)
        if replaced is not None and replaced.call != ask.call:
            effects.append(FailCalls((replaced.call,), f"group rank {ask.rank} asked again.", retry=True))
        self._asks[ask.rank] = ask
        self._metadata[ask.rank] = ask.checkpoint_metadata
        return effects + self._maybe_join(now)

    def _maybe_join(self, now: float) -> list[GroupEffect]:
        """Send the join once per session, when all ranks stand at the boundary."""
        if not (self._connected and self.asking) or self._asked_at is not None or self._ended is not None:
            return []
        asks = [self._asks[r] for r in sorted(self._asks)]
        # Ranks that differ (one healed, another failed to) hold no complete state together (R19).
        self.state = min(a.state for a in asks)
        self.torn = any(a.torn or a.state != self.state for a in asks)
        self._asked_at = now
        missed, self._missed = self._missed, False
        suspects = tuple(dict.fromkeys(s for a in asks for s in a.suspects))
        return [SendJoin(self._member(asks), _reason(asks, missed), suspects)]

    def _member(self, asks: list[Ask]) -> Member:
        c = self.config
        return Member(
            replica_id=c.replica_id,
            address=c.address,
            store_address=c.store_address,
            state=self.state,
            torn=self.torn,
            world_size=c.world_size,
            shrink_only=any(a.shrink_only for a in asks),
            commit_failures=max(a.commit_failures for a in asks),
            data=c.data,
            handles=tuple(a.handle for a in asks) if any(a.handle for a in asks) else (),
            library=c.library,
            layout=_layout(asks),
        )

    def _call_gone(self, call: int) -> list[GroupEffect]:
        # The join stays with the lighthouse: the member is still at its boundary, and its next ask is answered by it.
        self._asks = {r: a for r, a in self._asks.items() if a.call != call}
        self._ballot.withdraw(call)
        return []

    # --- the lighthouse's words ------------------------------------------------------------------------------------------

    def _quorum_arrived(self, quorum: Quorum, now: float) -> list[GroupEffect]:
        if self._asked_at is None or (self.quorum is not None and quorum.id <= self.quorum.id):
            return []  # answers a join of an older session, or is a repetition
        self.quorum, self._over = quorum, None
        self.lease_until = self._asked_at + quorum.lease
        self._asked_at = None
        stale = self._ballot.cancel()
        effects: list[GroupEffect] = []
        if stale:
            effects.append(AnswerVote(stale, False, "a newer quorum arrived before every rank had voted"))
        if not self.asking:
            # A rank gave up waiting. The next join says so, and the lighthouse releases the other groups.
            self._missed = True
            calls = tuple(a.call for a in self._asks.values())
            self._asks = {}
            missed = "a rank of this group stopped waiting before the quorum came; ask again"
            return [*effects, FailCalls(calls, missed, retry=True)] if calls else effects
        calls = tuple(a.call for a in self._asks.values())
        self._asks = {}
        return [*effects, AnswerQuorum(calls, quorum, self.lease_until)]

    def _over_arrived(self, event: OverArrived) -> list[GroupEffect]:
        if self.quorum is None or event.quorum_id != self.quorum.id or self._over is not None:
            return []
        self._over = event
        effects: list[GroupEffect] = [PushOver(event.quorum_id, event.lost, event.reason)]
        calls = self._ballot.cancel()
        if calls:
            effects.append(AnswerVote(calls, False, f"quorum q{self.quorum.number} is over: {event.reason}"))
        return effects

    def _end(self, sentence: str, fenced: bool) -> list[GroupEffect]:
        if self._ended is not None:
            return []
        self._ended = PushEnd(sentence, fenced)
        votes = self._ballot.cancel()
        effects: list[GroupEffect] = [Note("error", sentence, self.config.replica_id), self._ended]
        if votes:
            effects.append(AnswerVote(votes, False, sentence))
        return effects + self._fail_asks((), sentence)

    def _fail_asks(self, also: tuple[int, ...], sentence: str) -> list[GroupEffect]:
        """Tell every waiting rank at once (the peer leaves them to their deadline, D5)."""
        calls = tuple(a.call for a in self._asks.values()) + also
        self._asks = {}
        return [FailCalls(calls, sentence, retry=False)] if calls else []

    # --- voting ----------------------------------------------------------------------------------------------------------

    def _vote(self, vote: Vote, now: float) -> list[GroupEffect]:
        if self._ended is not None:
            return [AnswerVote((vote.call,), False, self._ended.sentence)]
        known = self.quorum
        if known is not None and vote.quorum_id and vote.quorum_id != known.id:
            sentence = (
                f"the vote names quorum {vote.quorum_id}, but the group is in quorum {known.id} (q{known.number})"
            )
            return [AnswerVote((vote.call,), False, sentence)]
        outcome = self._ballot.vote(vote)
        if isinstance(outcome, Rejected):
            calls = (*self._ballot.cancel(), vote.call)
            return [FailCalls(calls, outcome.sentence, retry=False)]
        if not isinstance(outcome, Counted):
            return []
        if not outcome.passed:
            return [AnswerVote(outcome.calls, False, f"group rank {', '.join(map(str, outcome.against))} said no")]
        if self._over is not None:
            return [AnswerVote(outcome.calls, False, f"the quorum is over: {self._over.reason}")]
        if known is not None and known.lease > 0 and now >= self.lease_until:  # R13: checked last, at the commit itself
            return [AnswerVote(outcome.calls, False, f"the lease of quorum q{known.number} has run out; asking again")]
        if known is not None:
            self.state = State(vote.step + 1, known.id)
        return [AnswerVote(outcome.calls, True)]


def _reason(asks: list[Ask], missed: bool) -> JoinReason:
    reasons = {a.reason for a in asks}
    if missed:
        reasons.add(JoinReason.REJOINED)
    for reason in (JoinReason.FAILED, JoinReason.REJOINED, JoinReason.NEW, JoinReason.HEALED):
        if reason in reasons:
            return reason
    return JoinReason.BOUNDARY


def _layout(asks: list[Ask]) -> str:
    """One text for the group: ranks of a sharded model have different layouts, so all of them are named."""
    layouts = [a.layout for a in asks]
    return ",".join(layouts) if all(layouts) else ""
