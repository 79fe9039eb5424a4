"""The machine of a group server: it speaks for all ranks of one replica group.

It turns one `Ask` per rank into one join, hands the quorum to every rank, runs the in-group vote, and knows when the
quorum in hand is over. A group is *asking* while a join is unanswered: it stands frozen at a step boundary (R4) and
asks again on every new session, because a join belongs to its session (R3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchft_x.core.ballot import Ballot
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
    Hello,
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
    Tick,
    Vote,
)
from torchft_x.core.traits import Traits, merge
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State
from torchft_x.errors import ConfigError

# If ranks give different reasons, the one that says most about the state of the group wins.
_REASON_ORDER = (JoinReason.FAILED, JoinReason.REJOINED, JoinReason.NEW, JoinReason.HEALED, JoinReason.BOUNDARY)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """What does not change over the life of a group."""

    replica_id: str
    """``<group id>:<nonce>``."""
    address: str
    """Of the group server, ``http://host:port``."""
    store_address: str
    """``host:port`` of the group's TCPStore."""
    world_size: int = 1
    """Ranks in the group."""
    library: str = ""
    """``torchft_x/<version>``; what it says decides who may heal from whom."""
    life: Life = Life()
    data: str = ""
    """JSON object handed to the other members, or empty."""
    boot_id: str = ""
    """Of the own host. With it a refused connect proves this life's death to a lighthouse on the same host."""

    def __post_init__(self) -> None:
        if not self.replica_id:
            raise ConfigError("replica_id is empty; a group needs a name like 'train_0:<nonce>'.")
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}; a group has at least one rank.")


class Group:
    """See the module's first lines. One thread at a time; the shell holds the lock."""

    def __init__(self, config: GroupConfig, now: float) -> None:
        self._config = config
        self._asks: dict[int, Ask] = {}  # rank -> its unanswered ask
        self._join: SendJoin | None = None  # sent or to be sent, and unanswered; the group is frozen (R4)
        self._declared: dict[int, Traits] = {}  # rank -> what it last declared
        self._traits: Traits | None = None  # of the whole group; None: to be merged from declared
        self._told: Traits | None = None  # what was sent on the present session
        self._sent_at: float | None = None  # when it was first sent on the present session; the lease counts from here
        self._quorum: Quorum | None = None  # quorum in hand: newest received
        self._lease_until = now  # of the quorum in hand, own monotonic clock
        self._over = ""  # why the quorum in hand can't be used any more; '' while it can
        self._owed: dict[int, Ask] = {}  # ranks whose call ended before the quorum in hand came; they may ask again
        self._state = State()  # newest the group server knows: last asked with, or committed since
        self._ballot = Ballot(config.world_size)
        self._metadata: dict[int, str] = {}  # rank -> where healers find its checkpoint, as last told
        self._session = False  # whether a session to the lighthouse stands
        self._no_session = "no session to the lighthouse yet"  # why not, for people
        self._end = ""  # why the group must stop; every later call gets it

    def __repr__(self) -> str:
        quorum = f"q{self._quorum.number}" if self._quorum else "none"
        return f"<Group {self._config.replica_id} {self._state} quorum={quorum} {self.waiting or 'idle'}>"

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def quorum(self) -> Quorum | None:
        """Quorum in hand."""
        return self._quorum

    @property
    def lease_until(self) -> float:
        """End of the lease of the quorum in hand, on the group's monotonic clock."""
        return self._lease_until

    @property
    def state(self) -> State:
        return self._state

    @property
    def waiting(self) -> str:
        """What the asking ranks wait for, as a sentence for deadlines and status; '' if nobody waits."""
        if self._join is not None:
            if not self._session:
                return f"the lighthouse has not answered the join: {self._no_session}."
            return "the lighthouse has not answered the join; its status says what it waits for."
        if self._asks:
            missing = [str(r) for r in range(self._config.world_size) if r not in self._asks]
            return f"group rank {', '.join(missing)} has not asked for a quorum yet."
        return ""

    def metadata(self, rank: int) -> str | None:
        """Where a healer's rank finds this rank's checkpoint; None: not told yet."""
        return self._metadata.get(rank)

    def hello(self, now: float) -> Hello:
        """Values for the hello of a new session. The shell on the other side puts its session number in."""
        return Hello(
            session=0,
            replica_id=self._config.replica_id,
            life=self._config.life,
            address=self._config.address,
            state=self._state,
            quorum=self._quorum,
            granted_through=self._quorum.granted_through if self._quorum else 0,
            lease_left=max(0.0, self._lease_until - now) if self._quorum else 0.0,
            boot_id=self._config.boot_id,
            library=self._config.library,
        )

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: GroupEvent, now: float) -> list[GroupEffect]:
        """Take an event, return what the shell must do, in order. `now`: monotonic seconds."""
        match event:
            case Ask():
                return self._on_ask(event, now)
            case Vote():
                return self._on_vote(event, now)
            case CallGone(call):
                self._on_call_gone(call)
            case SessionUp():
                self._session = True
                self._told = None
                return self._send_join(now, new_session=True)
            case SessionDown(reason):
                self._session = False
                self._no_session = reason
                self._maybe_withdraw()
            case QuorumArrived(quorum):
                return self._on_quorum(quorum)
            case OverArrived():
                return self._on_over(event)
            case FencedArrived(by):
                text = f"{self._config.replica_id} must stop: {by}, a newer life of its group, is running."
                return self._finish(text, fenced=True)
            case RefusedArrived(sentence):
                return self._finish(sentence, fenced=False)
            case Depart():
                return self._on_depart()
            case Tick():
                pass  # nothing here ends by itself: ranks bring their own deadlines, the lease is checked at the vote
        return []

    def _on_ask(self, ask: Ask, now: float) -> list[GroupEffect]:
        if self._end:
            return [FailCalls((ask.call,), self._end, retry=False)]
        if not 0 <= ask.rank < self._config.world_size:
            text = f"group rank {ask.rank} is outside this group of {self._config.world_size} ranks."
            return [FailCalls((ask.call,), text, retry=False)]
        self._metadata[ask.rank] = ask.checkpoint_metadata
        if ask.traits is not None and ask.traits != self._declared.get(ask.rank):
            self._declared[ask.rank] = ask.traits
            self._traits = None
        owed = self._owed.pop(ask.rank, None)
        usable = self._join is None and not self._over and now <= self._lease_until
        if owed is not None and owed.state == ask.state and usable and self._quorum is not None:
            return [AnswerQuorum((ask.call,), self._quorum, self._lease_until)]
        effects: list[GroupEffect] = []
        older = self._asks.get(ask.rank)
        if older is not None and older.call != ask.call:
            text = f"group rank {ask.rank} has asked for a quorum again, from another call."
            effects.append(FailCalls((older.call,), text, retry=False))
        self._asks[ask.rank] = ask
        effects += self._release_voters()
        if len(self._asks) == self._config.world_size:
            self._state = min(a.state for a in self._asks.values())
            join = self._make_join(now)
            if join != self._join:
                self._join = join
                effects += self._send_join(now)
        return effects

    def _on_call_gone(self, call: int) -> None:
        self._ballot.gone(call)
        for rank, ask in list(self._asks.items()):
            if ask.call == call:
                del self._asks[rank]
                if self._join is not None:
                    self._owed[rank] = ask  # the join stands at the lighthouse and can't be taken back
        self._maybe_withdraw()

    def _maybe_withdraw(self) -> None:
        """The join died with its session (R3) and no rank waits for the answer: the group is not frozen any more."""
        if self._session or self._asks or self._join is None:
            return
        self._join = None
        self._sent_at = None
        self._owed.clear()

    def _on_quorum(self, quorum: Quorum) -> list[GroupEffect]:
        """Only the answer to the join in hand counts. Anything else belongs to an earlier session (R3)."""
        stale = self._quorum is not None and quorum.id <= self._quorum.id
        if stale or self._join is None or self._sent_at is None or quorum.member(self._config.replica_id) is None:
            text = f"Dropped quorum {quorum.id}: it does not answer a join of {self._config.replica_id}."
            return [Note("stale_quorum", text, self._config.replica_id, quorum.id)]
        self._quorum = quorum
        self._lease_until = self._sent_at + quorum.lease
        self._over = ""
        self._join = None
        self._sent_at = None
        calls = tuple(self._asks[rank].call for rank in sorted(self._asks))
        self._asks.clear()
        effects = self._ballot.open(quorum.id)
        if calls:
            effects.append(AnswerQuorum(calls, quorum, self._lease_until))
        return effects

    def _on_over(self, event: OverArrived) -> list[GroupEffect]:
        if self._quorum is None or event.quorum_id != self._quorum.id or self._over:
            return []
        self._over = f"quorum {event.quorum_id} is over: {event.reason}"
        push = PushOver(event.quorum_id, event.lost, event.reason)
        return [push, *self._ballot.cancel(self._over)]

    def _on_vote(self, vote: Vote, now: float) -> list[GroupEffect]:
        frozen = "the group has asked for the next quorum." if self._join is not None else ""  # R4
        objection = self._end or self._over or frozen
        if objection:
            return [AnswerVote((vote.call,), False, objection)]
        lease_until = (
            self._lease_until if self._quorum is not None else now
        )  # a peer's client may vote without a quorum
        effects = self._ballot.vote(vote, now=now, lease_until=lease_until)
        if self._quorum is not None and any(isinstance(e, AnswerVote) and e.commit for e in effects):
            self._state = State(self._quorum.top.step + 1, self._quorum.id)
        return effects + self._release_voters()

    def _release_voters(self) -> list[GroupEffect]:
        """A rank that asks for the next quorum will not vote any more: those that did would wait for ever."""
        gone = sorted(set(self._asks) - self._ballot.voted)
        if not gone or not self._ballot.waiting:
            return []
        ranks = ", ".join(str(rank) for rank in gone)
        return self._ballot.cancel(f"group rank {ranks} asked for a new quorum instead of voting.")

    def _on_depart(self) -> list[GroupEffect]:
        if self._end:
            return []
        effects: list[GroupEffect] = [SendLeave(self._state)] if self._session else []
        return effects + self._stop_calls(f"{self._config.replica_id} is leaving the job.")

    def _finish(self, sentence: str, *, fenced: bool) -> list[GroupEffect]:
        if self._end:
            return []
        return [*self._stop_calls(sentence), PushEnd(sentence, fenced)]

    def _stop_calls(self, sentence: str) -> list[GroupEffect]:
        """Nothing will be answered any more: every waiting rank hears why, at once."""
        self._end = sentence
        self._join = None
        calls = tuple(self._asks[rank].call for rank in sorted(self._asks))
        self._asks.clear()
        self._owed.clear()
        effects: list[GroupEffect] = [FailCalls(calls, sentence, retry=False)] if calls else []
        return effects + self._ballot.cancel(sentence)

    # --- the join ------------------------------------------------------------------------------------------------

    def _send_join(self, now: float, *, new_session: bool = False) -> list[GroupEffect]:
        if self._join is None or not self._session:
            return []
        if new_session or self._sent_at is None:
            self._sent_at = now
        told, self._told = self._told, self._join.traits
        return [replace(self._join, traits=None) if told is self._told else self._join]

    def _make_join(self, now: float) -> SendJoin:
        """One join out of all ranks' asks. The weakest rank speaks for the group (I2)."""
        asks = [self._asks[rank] for rank in range(self._config.world_size)]
        c = self._config
        uneven = len({a.state for a in asks}) > 1  # one rank missed a commit: no complete state, the group heals
        handles = tuple(a.handle for a in asks)
        member = Member(
            replica_id=c.replica_id,
            address=c.address,
            store_address=c.store_address,
            state=self._state,
            torn=uneven or any(a.torn for a in asks),
            world_size=c.world_size,
            shrink_only=any(a.shrink_only for a in asks),
            commit_failures=max(a.commit_failures for a in asks),
            data=c.data,
            handles=handles if any(handles) else (),
            library=c.library,
        )
        reason = min((a.reason for a in asks), key=_REASON_ORDER.index)
        lapsed = self._quorum is not None and (self._over or now > self._lease_until)
        if lapsed and reason is JoinReason.BOUNDARY:
            reason = JoinReason.REJOINED  # its collectives were released, or others may have gone on without it
        suspects = sorted({s for a in asks for s in a.suspects})
        if self._traits is None:
            self._traits = merge([self._declared.get(rank, Traits()) for rank in range(c.world_size)])
        return SendJoin(member, reason, tuple(suspects), self._traits if self._traits.items else None)
