"""State machine of a group server, which speaks for all ranks of one replica group.

It merges one `Ask` per rank into one join, hands the quorum to every rank, runs the in-group vote, and knows when the
held quorum is over. A group is *asking* while a join is unanswered: it is frozen at a step boundary (R4). It asks again
on every new session, because a join belongs to its session (R3).
"""

from __future__ import annotations

from dataclasses import replace

from torchft_x.core.commit.two_phase import ShouldCommitVote, TwoPhaseCommit
from torchft_x.core.decision_log import DecisionLog
from torchft_x.core.fingerprint import Fingerprint, merge
from torchft_x.core.group.join import GroupConfig, make_join, why_asked, why_held
from torchft_x.core.group.lease import HeldQuorum
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.messages.group import (
    Ask,
    CallGone,
    CrossVoteEnded,
    FailCalls,
    GroupEffect,
    GroupEvent,
    GroupVote,
    Leave,
    PongArrived,
    PushEnd,
    QuorumArrived,
    QuorumReply,
    SessionDown,
    SessionUp,
    Vote,
    VoteReply,
)
from torchft_x.core.types import JoinReason, Prepared, Quorum, State

__all__ = ["Group", "GroupConfig"]


class Group:
    """State machine of one group server. Only one thread may use it at a time: the shell holds the lock."""

    def __init__(self, config: GroupConfig, now: float) -> None:
        self._config = config
        self._decision_log = DecisionLog()  # newest decisions
        self._asks: dict[int, Ask] = {}  # rank -> its unanswered ask
        self._join: lm.Join | None = None  # the unanswered join; the group is frozen while there is one (R4)
        self._declared: dict[int, Fingerprint] = {}  # rank -> traits that it last declared
        self._traits: Fingerprint | None = None  # traits of the whole group; None: to be merged from `_declared`
        self._sent_traits: Fingerprint | None = None  # traits that were sent on the present session
        # When the join was first sent on the present session, or the newest answered ping since. The quorum that
        # answers the join is decided later, so its lease may count from this time. None: not sent.
        self._sent_at: float | None = None
        self._number = 0  # number of the join as last sent; a grant with this number answers the join
        self._held_quorum = HeldQuorum(now)
        self._cleared: State | None = None  # every rank at this state may begin the next step in the held quorum
        self._owed: dict[int, Ask] = {}  # ranks whose call ended before the held quorum came; they may ask again
        self._commit: Prepared | None = None  # step that every rank commits first in the held quorum
        self._again = False  # whether all ranks that asked for the held or the next quorum keep their gradients
        self._state = State()  # newest state that the group server knows: last asked with, or committed since
        self._two_phase = TwoPhaseCommit(config.replica_id, between_groups=config.commit_vote)
        self._should_commit_vote = ShouldCommitVote(config.world_size)  # votes of ranks that run torchft
        self._step_seconds = 0.0  # duration of a step, as the ranks last reported; 0: unknown
        self._metadata: dict[int, str] = {}  # rank -> where healers find its checkpoint, as last reported
        self._session = False  # whether there is a session to the lighthouse
        self._no_session = "no session to the lighthouse yet"  # why there is no session, for people
        self._end = ""  # why the group must stop, the answer to every later call; '' while it runs

    def __repr__(self) -> str:
        return f"<Group {self._config.replica_id} {self._state} {self._held_quorum} {self.waiting or 'idle'}>"

    def story(self, now: float) -> list[str]:
        """Return the newest decisions, oldest first: how long ago each was made, its cause, and what was decided."""
        return self._decision_log.story(now)

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def quorum(self) -> Quorum | None:
        """Quorum that the group holds."""
        return self._held_quorum.quorum

    @property
    def lease_until(self) -> float:
        """End of the held quorum's lease, on the group's monotonic clock (seconds)."""
        return self._held_quorum.lease_until

    @property
    def state(self) -> State:
        return self._state

    @property
    def waiting(self) -> str:
        """Reason for which asking ranks wait, as a sentence for deadlines and status; '' if no rank waits."""
        if self._join is not None:
            if not self._session:
                return f"the lighthouse has not answered the join: {self._no_session}."
            return "the lighthouse has not answered the join; its status says what it waits for."
        if self._asks:
            missing = [str(r) for r in range(self._config.world_size) if r not in self._asks]
            return f"group rank {', '.join(missing)} has not asked for a quorum yet."
        return ""

    @property
    def incomplete(self) -> bool:
        """Whether some ranks of the group have asked and others have not yet."""
        return 0 < len(self._asks) < self._config.world_size

    def metadata(self, rank: int) -> str | None:
        """Return where a healer's rank finds this rank's checkpoint; None: not reported yet."""
        return self._metadata.get(rank)

    def hello(self, now: float) -> lm.Hello:
        """Return the hello of a new session. The lighthouse's shell fills in the session number.

        A group that runs past its grant grants itself some steps here and announces them (`HeldQuorum.promise`).
        """
        if self._runs_past(now):
            self._held_quorum.promise(self._state.step, self._step_seconds, now)
        return lm.Hello(
            session=0,
            replica_id=self._config.replica_id,
            attempt_id=self._config.attempt_id,
            address=self._config.address,
            state=self._state,
            quorum=self._held_quorum.quorum,
            granted_through=max(self._held_quorum.granted_through, self._cleared.step + 1 if self._cleared else 0),
            lease_left=max(0.0, self._held_quorum.lease_until - now) if self._held_quorum.quorum else 0.0,
            boot_id=self._config.boot_id,
            library=self._config.library,
            runs_on=self._config.runs_on,
        )

    def _runs_past(self, now: float) -> bool:
        """Return whether the lease alone limits the group in the held quorum while it has no session (R16)."""
        return self._config.runs_on and self._join is None and self._steady and self._held_quorum.usable(now)

    @property
    def _steady(self) -> bool:
        """Whether the group has committed in the held quorum, in which all members carry the same state."""
        return self._state.committed_in == self._held_quorum.quorum_id and self._held_quorum.everybody_carries

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: GroupEvent, now: float) -> list[GroupEffect]:
        """Handle an event and return the effects that the shell must carry out, in order. `now`: monotonic seconds."""
        self._decision_log.now, self._decision_log.event = now, event
        match event:
            case Ask():
                return self._on_ask(event, now)
            case Vote() | GroupVote():
                return self._on_vote(event, now)
            case CrossVoteEnded():
                return self._on_cross_vote_ended(event, now)
            case CallGone(call):
                self._on_call_gone(call)
            case SessionUp():
                self._session = True
                self._decision_log.note("The lighthouse has taken the group's hello.")
                self._held_quorum.greeted(now)
                self._held_quorum.forget_requests()
                self._sent_traits = None
                return self._send_join(now, new_session=True)
            case SessionDown(reason):
                return self._on_session_down(reason, now)
            case QuorumArrived(quorum):
                return self._on_quorum(quorum)
            case lm.Extend():
                return self._on_grant(event, now)
            case lm.RevokeQuorum():
                return self._on_revoked(event)
            case lm.Fence(by):
                text = f"{self._config.replica_id} must stop: {by}, a newer attempt of its group, is running."
                return self._finish(text, fenced=True)
            case lm.Refuse(sentence):
                return self._finish(sentence, fenced=False)
            case PongArrived(sent_at):
                if self._sent_at is not None:  # else a wait longer than a lease ends with an expired lease
                    self._sent_at = max(self._sent_at, sent_at)
            case Leave():
                return self._on_leave(event)
            case Tick():
                return self._progress(now)  # ranks have their own deadlines; the lease is checked at the vote
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
        # This rank must commit the step that the other ranks have committed (I2), even if the quorum is unusable.
        worth = self._commit is not None or self._held_quorum.usable(now)
        if owed is not None and owed.state == ask.state and self._join is None and worth:
            return [self._answer((ask.call,), commit=self._commit, again=self._again and ask.keeps)]
        if self._may_run_on(ask, now):
            self._cleared = ask.state
            return [self._answer((ask.call,), base=ask.state), *self._progress(now)]
        effects: list[GroupEffect] = []
        older = self._asks.get(ask.rank)
        if older is not None and older.call != ask.call:
            text = f"group rank {ask.rank} has asked for a quorum again, from another call."
            effects.append(FailCalls((older.call,), text, retry=False))
        self._asks[ask.rank] = ask
        effects += self._should_commit_vote.release(frozenset(self._asks))
        if len(self._asks) == self._config.world_size:
            state = min(a.state for a in self._asks.values())
            self._again = all(a.keeps for a in self._asks.values())
            if state != self._state:
                self._two_phase.state_replaced()
            self._state = state
            lapsed = self._held_quorum.quorum is not None and not self._held_quorum.usable(now)
            join = make_join(self._config, self._asks, state, self._two_phase, self._group_traits(), lapsed=lapsed)
            if join != self._join:
                # R3: one join at a time. The first may be answered already; a second would stay open for the old state.
                sent = self._join is not None and self._sent_at is not None and self._session
                self._join = join
                self._decision_log.note(why_asked(join))
                effects += [] if sent else self._send_join(now)
                # R16: the session may have ended after another rank found the grant used up.
                effects += [] if self._session else self._run_on(now)
        return effects

    def _on_call_gone(self, call: int) -> None:
        self._should_commit_vote.gone(call)
        for rank, ask in list(self._asks.items()):
            if ask.call == call:
                del self._asks[rank]
                if self._join is not None:
                    self._owed[rank] = ask  # the join is open at the lighthouse and can't be taken back
        self._maybe_withdraw()

    def _maybe_withdraw(self) -> None:
        """Withdraw the join, which unfreezes the group, if its session is gone (R3) and no rank waits for it."""
        if self._join is not None and not (self._session or self._asks):
            self._withdraw("there is no session to the lighthouse")

    def _withdraw(self, why: str) -> None:
        self._join = self._sent_at = None
        self._owed.clear()
        self._decision_log.note(f"The join is withdrawn: {why}, and no rank waits for the answer.")

    def _on_session_down(self, reason: str, now: float) -> list[GroupEffect]:
        if self._session:
            self._decision_log.note(f"The session to the lighthouse is gone: {reason}.")
        self._session = False
        self._no_session = reason
        self._held_quorum.forget_requests()
        self._maybe_withdraw()
        return self._run_on(now)  # R16

    def _on_quorum(self, quorum: Quorum) -> list[GroupEffect]:
        """Take a quorum that answers the open join. Drop any other: it belongs to an earlier session (R3)."""
        stale = quorum.id <= self._held_quorum.quorum_id
        if stale or self._join is None or self._sent_at is None or quorum.member(self._config.replica_id) is None:
            text = f"Dropped quorum {quorum.id}: it does not answer a join of {self._config.replica_id}."
            self._decision_log.note(text)
            return [Note("stale_quorum", text, self._config.replica_id, quorum.id)]
        self._held_quorum.receive(quorum, self._sent_at)
        self._cleared = None
        effects = self._should_commit_vote.open()
        self._commit = commit = self._two_phase.open(quorum)
        if commit is not None:
            self._state = commit.state
        self._decision_log.note(why_held(quorum, commit))
        return effects + self._answer_asks(commit=commit)

    def _answer(
        self,
        calls: tuple[int, ...],
        *,
        base: State | None = None,
        commit: Prepared | None = None,
        again: bool = False,
    ) -> QuorumReply:
        quorum = self._held_quorum.quorum
        assert quorum is not None
        return QuorumReply(quorum, self._held_quorum.lease_until, base, commit, again, calls)

    def _answer_asks(self, *, base: State | None = None, commit: Prepared | None = None) -> list[GroupEffect]:
        """Close the open join and answer every waiting rank."""
        self._join = None
        self._sent_at = None
        calls = tuple(self._asks[rank].call for rank in sorted(self._asks))
        self._asks.clear()
        again = self._again and base is None
        return [self._answer(calls, base=base, commit=commit, again=again)] if calls else []

    def _on_revoked(self, event: lm.RevokeQuorum) -> list[GroupEffect]:
        if event.quorum_id != self._held_quorum.quorum_id or self._held_quorum.over:
            return []
        self._held_quorum.over = f"quorum {event.quorum_id} is over: {event.reason}"
        self._decision_log.note(f"The quorum in hand is over: {event.reason}")
        return [event, *self._should_commit_vote.cancel(self._held_quorum.over)]

    # --- commit --------------------------------------------------------------------------------------------------

    @property
    def _frozen(self) -> str:
        """Reason for which nothing may be committed at present (R4), or ''."""
        return self._end or ("the group has asked for the next quorum." if self._join is not None else "")

    def _on_vote(self, vote: Vote | GroupVote, now: float) -> list[GroupEffect]:
        objection = self._end or self._held_quorum.over or self._frozen
        if objection:
            self._decision_log.note(f"Step {vote.step} is not committed: {objection}")
            return [VoteReply(False, objection, calls=(vote.call,) if isinstance(vote, Vote) else ())]
        if isinstance(vote, GroupVote):
            return self._committed([self._two_phase.vote(vote, self._held_quorum.ended(now))], vote.step)
        effects = self._committed(self._should_commit_vote.vote(vote, self._held_quorum.ended(now)), vote.step)
        return effects + self._should_commit_vote.release(frozenset(self._asks))

    def _on_cross_vote_ended(self, event: CrossVoteEnded, now: float) -> list[GroupEffect]:
        """Carry out the cross-group vote, even if the quorum is over meanwhile: a passed vote is the decision (R13)."""
        if self._frozen:
            return [VoteReply(False, self._frozen)]
        answer = self._two_phase.cross_vote_ended(event, self._held_quorum.ended(now))
        return self._committed([answer], event.step)

    def _committed(self, effects: list[GroupEffect], step: int) -> list[GroupEffect]:
        """Advance the state if `effects` announce a commit, and return them unchanged."""
        for answer in effects:
            if not isinstance(answer, VoteReply) or answer.prepared:
                continue
            if not answer.commit:
                self._decision_log.note(f"Step {step} is not committed: {answer.reason}")
            elif self._held_quorum.quorum is not None:
                state = State(step + 1, self._held_quorum.quorum.id)
                if state != self._state:
                    self._state = state
                    self._two_phase.committed()
        return effects

    # --- running on ----------------------------------------------------------------------------------------------

    def _may_run_on(self, ask: Ask, now: float) -> bool:
        """Return whether the held quorum covers this rank's next step. All ranks at one state get the same answer."""
        held = self._held_quorum.quorum
        if not self._config.runs_on or held is None or self._held_quorum.over or self._join is not None:
            return False
        plain = ask.reason in (JoinReason.BOUNDARY, JoinReason.HEALED) and not ask.torn
        if not plain or ask.commit_failures or ask.state != self._state or ask.state.committed_in != held.id:
            return False
        if ask.state == self._cleared:
            return True
        self._step_seconds = ask.step_seconds or self._step_seconds
        return (
            self._held_quorum.everybody_carries
            and not self._asks
            and self._held_quorum.allows(ask.state.step + 1, now, connected=self._session)
        )

    def _progress(self, now: float) -> list[GroupEffect]:
        """Ask for more steps or a longer lease before they are needed."""
        if not (self._config.runs_on and self._session) or self._join is not None:
            return []
        if not self._held_quorum.wants_more(self._state.step, now):
            return []
        number = self._held_quorum.progress(now)
        return [lm.Progress(0, self._held_quorum.quorum_id, self._state.step, number, self._step_seconds)]

    def _on_grant(self, grant: lm.Extend, now: float) -> list[GroupEffect]:
        extended = self._held_quorum.extend(grant)
        if self._join is not None and grant.number != self._number:
            return []  # R3: it answers an earlier request, and the join stays open until its own answer
        effects = self._run_on(now) if extended else []
        if effects or self._join is None:
            return effects
        # The lighthouse has answered the join, but the grant can't be used: the lease has ended, or the quorum is over.
        if not self._asks:
            self._withdraw("the grant that answers it can't be used")
            return []
        self._join = replace(self._join, reason=JoinReason.REJOINED)
        self._sent_at = None
        self._owed.clear()
        self._decision_log.note("The grant that answers the join can't be used: the group asks again.")
        return self._send_join(now)

    def goes_on_alone(self, now: float) -> bool:
        """Return whether the group waits for the lighthouse and would go on at once without a session (R16)."""
        return self._session and self._only_wants_more and self._held_quorum.usable(now)

    @property
    def _only_wants_more(self) -> bool:
        """Whether ranks wait with a join that asks only for more steps in the held quorum."""
        join = self._join
        plain = join is not None and join.reason in (JoinReason.BOUNDARY, JoinReason.HEALED)
        if join is None or not plain or not self._config.runs_on or not self._asks:
            return False
        return not (join.member.torn or join.member.commit_failures) and self._steady

    def _run_on(self, now: float) -> list[GroupEffect]:
        """Answer a join that only asked for more steps, if an extended grant or the loss of the session allows them."""
        if not self._only_wants_more or not self._held_quorum.allows(
            self._state.step + 1, now, connected=self._session
        ):
            return []
        self._cleared = self._state
        through = self._held_quorum.granted_through
        self._decision_log.note(f"The group goes on in its quorum, through step {through}.")
        self._owed.clear()  # only a quorum is owed, and a rank that asks again is cleared
        return self._answer_asks(base=self._state)

    def _on_leave(self, event: Leave) -> list[GroupEffect]:
        if self._end:
            return []
        leave = lm.Leave(0, self._state, event.early, event.lingers)
        effects: list[GroupEffect] = [leave] if self._session else []
        return effects + self._stop_calls(f"{self._config.replica_id} is leaving the job.")

    def _finish(self, sentence: str, *, fenced: bool) -> list[GroupEffect]:
        if self._end:
            return []
        return [*self._stop_calls(sentence), PushEnd(sentence, fenced)]

    def _stop_calls(self, sentence: str) -> list[GroupEffect]:
        """End the group and fail every waiting call at once with `sentence` as the reason."""
        self._end = sentence
        self._decision_log.note(sentence)
        self._join = None
        calls = tuple(self._asks[rank].call for rank in sorted(self._asks))
        self._asks.clear()
        self._owed.clear()
        effects: list[GroupEffect] = [FailCalls(calls, sentence, retry=False)] if calls else []
        return effects + self._should_commit_vote.cancel(sentence)

    # --- the join ------------------------------------------------------------------------------------------------

    def _send_join(self, now: float, *, new_session: bool = False) -> list[GroupEffect]:
        if self._join is None or not self._session:
            return []
        if new_session or self._sent_at is None:
            self._sent_at = now
        if (
            self._join.reason is JoinReason.BOUNDARY
            and self._held_quorum.quorum is not None
            and not self._held_quorum.usable(now)
        ):
            self._join = replace(self._join, reason=JoinReason.REJOINED)  # the lease has ended since the join was made
        sent_traits, self._sent_traits = self._sent_traits, self._join.traits
        self._number = self._held_quorum.number(now) if self._config.runs_on else 0
        traits = None if sent_traits is self._sent_traits else self._join.traits
        return [replace(self._join, traits=traits, number=self._number, step_seconds=self._step_seconds)]

    def _group_traits(self) -> Fingerprint | None:
        """Return the merged traits of all ranks; None if they declared nothing."""
        if self._traits is None:
            self._traits = merge([self._declared.get(rank, Fingerprint()) for rank in range(self._config.world_size)])
        return self._traits if self._traits.items else None
