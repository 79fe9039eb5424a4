"""One quorum, from asking for it until this rank holds its state.

Order matters. The process group comes first, so that the others' reductions are not held up; then the snapshot for
those who heal from us; then our own heal. `ready` is set in between: reductions run beside the rest.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from torchft_x.core import heal
from torchft_x.core.commit.step import LocalVote, Outcome, Phase, Terms
from torchft_x.core.heal import Plan
from torchft_x.core.messages.group import Ask
from torchft_x.core.types import Computed, JoinReason, Part, Quorum, State, group_of
from torchft_x.errors import DeadlineError, StepError
from torchft_x.rpc.codec.ranks import QuorumReply
from torchft_x.timing import TIMING
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.peer_links import silent
from torchft_x.train.heal.state_exchange import StateExchange

_SOON = 0.001  # seconds in which rank 0 usually says how the step begins; else a thread waits, beside the forward pass
Wait = Callable[[float], QuorumReply]
"""Waits so many seconds for an answer that is on its way."""
_SET = threading.Event()  # of a round in which nothing has to be waited for: most are, and an Event costs some
_SET.set()


@dataclass(frozen=True)
class QuorumOptions:
    """How a step asks for its quorum.

    Args:
        timeout: seconds until it must have come.
        patience: seconds more, while the lighthouse is away or waits for a lease.
        allow_heal: False: nobody heals in this quorum.
        shrink_only: no newcomers.
    """

    timeout: float
    patience: float = 0.0
    allow_heal: bool = True
    shrink_only: bool = False


@dataclass(frozen=True)
class Standing:
    """What a quorum means for this rank: worked out once, and read by each further step in it."""

    quorum: Quorum
    plan: Plan
    part: Part
    counts_after_heal: bool  # that the part is worked out with
    votes_late: bool  # some member's script reduces after backward
    settled: bool  # nobody heals, here or from here, so the next step begins as this one


class QuorumRound:
    """See the module. `run` is called once, on the training thread or beside it, unless the group `continues`; both report
    and never raise.

    Args:
        in_place: the heal may overwrite the live tensors now, because the training thread waits for it.
        counts_after_heal: a healed rank contributes in this very quorum (synchronous quorums).
        keeps: it is asked for inside a step whose gradients this rank can reduce again.
        votes_late: this rank's script reduces after backward.
    """

    def __init__(
        self,
        context: RankContext,
        terms: Terms,
        options: QuorumOptions,
        *,
        in_place: bool,
        counts_after_heal: bool,
        previous: Standing | None,
        keeps: bool = False,
        votes_late: bool = False,
    ) -> None:
        self.ready = _SET  # the quorum and the process group are there, or `error` says why not
        self.done = _SET  # also the snapshot and the fetch
        self.error: Exception | None = None  # there is no quorum; raised to whoever needs it
        self.at_once = False  # all of it came with the question: there is nothing to wait for, now or later
        self.standing: Standing | None = None  # set before `ready`, unless error
        self.ended: Outcome | None = None  # how the step before ended, if that was left to this quorum
        self.computed: Computed | None = None  # what gradients that are computed in it are for; None: for nothing
        self.heals = False  # this rank copies state first
        self.again = False  # all ranks of the group keep the gradients of the step before
        self.votes_late = votes_late  # some member's script reduces after backward, so the vote comes after that
        self._changed = False  # something happened: other members, a new process group, a heal
        self._began = time.monotonic()
        context.step_time.begin(self._began)
        self._context = context
        self._terms = terms
        self._options = options
        self._limit = options.timeout + options.patience  # seconds until the quorum must have come
        self._in_place = in_place  # the training thread waits: state may be loaded at once
        self._healing: StateExchange | None = None  # made when there is something to copy
        self._counts_after_heal = counts_after_heal
        self._previous = previous  # of the quorum before this one
        self._keeps = keeps  # see above
        self._asked: QuorumReply | Wait | None = None  # what the question came to, if it has been put
        self._plan: Plan | None = None  # between the quorum's arrival and `exchange_state`

    # --- the training thread ------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Raises what kept the quorum from coming."""
        if not self.ready.is_set() and not self._wait(self.ready):
            raise DeadlineError(f"no quorum within {self._limit:g} s, and its thread does not come back.")
        if self.error is not None:
            raise self.error

    def _wait(self, event: threading.Event) -> bool:
        waits = self._context.waits
        waits.wait(time.monotonic())
        try:
            return event.wait(self._limit + self._context.options.timeout + TIMING.late_round)
        finally:
            waits.work(time.monotonic())

    def wait_idle(self) -> None:
        """Its thread must have ended before the next quorum asks. Raises `StepError`."""
        if not self.done.wait(self._limit + 2 * self._context.options.timeout + TIMING.late_round):
            raise StepError("the last quorum's thread does not come back (its snapshot or fetch hangs); stopping.")

    def wait_done(self) -> None:
        """Wait for the fetch (its own deadline is the timeout), then load what came (asynchronous heal)."""
        c = self._context
        if not self.done.wait(2 * c.options.timeout + TIMING.late_round):
            late = DeadlineError(f"the state has not come within {2 * c.options.timeout:g} s.")
            c.failures.heal_failed(late, torn=self._in_place)
            return
        if self._healing is not None:
            self._healing.load_fetched()

    def log_outcome(self, vote: LocalVote, outcome: Outcome, sent: int, took: float) -> None:
        """Log how the step ended: loudly only if something happened in it. `sent`, `took`: bytes and seconds of its
        reductions."""
        c = self._context
        c.waits.next_step(now := time.monotonic())
        level = logging.DEBUG if outcome.committed and not self._changed else logging.INFO
        why = "" if outcome.committed or vote.errored is not None else f" ({outcome.reason})"
        c.log.log(level, "should_commit=%s %s%s", outcome.committed, vote, why)
        c.events.emit(
            "commit" if outcome.committed else "drop",
            step=outcome.step,
            quorum=outcome.quorum_id,
            participants=outcome.participants,
            duration=now - self._began,
            bytes=sent or None,
            reduction=took or None,
            reason=outcome.reason or None,
        )

    # --- the quorum ---------------------------------------------------------------------------------------------------

    def continues(self) -> bool:
        """Ask. True if the group goes on in the quorum it holds and the answer came at once: everything is there and
        nothing has changed, so there is nothing to `run`."""
        connection, before, held = self._context.connection, self._context.failures.plan, self._previous
        try:
            asked = self._asked = self._request()
            reply = asked if isinstance(asked, QuorumReply) else None
            held_id = 0 if before is None else before.quorum_id
            on = reply is not None and reply.base is not None and held_id == reply.quorum.id
            if connection.hub is not None and connection.hub.owes_start:
                state = self._terms.state
                connected = connection.link.connected
                connection.hub.start(state.committed_in, state.step, runs_on=on, connected=connected)
            if reply is None or before is None or not on:
                self._pend()
                return False
            alike = held is not None and held.plan is before and held.counts_after_heal == self._counts_after_heal
            if held is not None and held.settled and alike:
                self._go_on(reply, held)
            else:
                self._configure(self._begin(reply))
                if before.offers:
                    self._context.transport.disallow_checkpoint()
            self.at_once = True
        except Exception as e:
            self.error = self._request_failed(e)
        return True

    def _go_on(self, reply: QuorumReply, held: Standing) -> None:
        """The next step of a quorum in which nobody heals: what was worked out for the last one holds."""
        c, plan = self._context, held.plan
        assert reply.base is not None, "it goes on from somewhere"
        with c.failures.lock:
            self.ended = c.step.begin(plan.quorum_id, reply.base, held.part.rank, held.part.size, reply.commit)
        if c.status is not None:
            c.status.publish()
        self.standing, self.again, self.computed = held, reply.again, Computed(reply.base, held.part)
        self.votes_late = self.votes_late or held.votes_late
        self._plan = plan
        self._check_intact(plan)
        if c.failures.broken or c.step.error is not None:
            self._configure(plan)

    def _check_intact(self, plan: Plan) -> None:
        """Of a group that goes on: rank 0 does, and this rank may not be able to."""
        if self._terms.reason is JoinReason.FAILED:
            error = StepError("this rank's process group broke after the last commit.")
            self._context.failures.fail(error, plan.quorum_id)

    def _pend(self) -> None:
        """There is something to wait for."""
        if self.ready is _SET:
            self.ready, self.done = threading.Event(), threading.Event()

    def run(self, *, exchange: bool = True) -> None:
        """Not `exchange_state`: the state is being changed, so it is neither offered nor replaced until `exchange_state` is called."""
        self._pend()
        try:
            try:
                asked = self._asked or self._request()
                plan = self._begin(asked if isinstance(asked, QuorumReply) else asked(self._limit))
            except Exception as e:
                raise self._request_failed(e) from None
            self._configure(plan)
            self.ready.set()
            if exchange:
                self.exchange_state()
        except Exception as e:
            self.error = e
        finally:
            self.ready.set()
            self.done.set()

    def run_inline(self, *, exchange: bool = True) -> None:
        """The same on the training thread, which waits for others meanwhile."""
        waits = self._context.waits
        waits.wait(time.monotonic())
        try:
            self.run(exchange=exchange)
        finally:
            waits.work(time.monotonic())

    def exchange_state(self) -> None:
        """Offer what others want to copy from us, and copy what we need. Once; `run` does it."""
        plan, self._plan = self._plan, None
        if plan is not None and self._options.allow_heal:
            self._healing = StateExchange(self._context, in_place=self._in_place)
            self._healing.offer(plan)
            self._healing.heal(plan)
            if plan.heal and self._in_place:
                self._computes_at(plan)

    def _computes_at(self, plan: Plan) -> None:
        """The heal has ended: gradients are worth something if this rank holds the state."""
        step = self._context.step
        with self._context.failures.lock:
            whole = step.state == plan.top and not step.torn
        if whole and self.standing is not None:
            self.computed = Computed(plan.top, self.standing.part)

    def _request(self) -> QuorumReply | Wait:
        """Put the question, unless rank 0 says for all of the group how this step begins: after each commit."""
        spoke = self._context.connection.spoke
        if spoke is None or not spoke.expects_start:
            return self._put()
        told = spoke.start(_SOON)
        if told is not None:
            return self._follow_rank0(*told)

        def wait(timeout: float) -> QuorumReply:
            told = spoke.start(timeout)
            if told is None:
                raise DeadlineError(f"group rank 0 has not begun the next step within {timeout:g} s.")
            asked = self._follow_rank0(*told)
            return asked if isinstance(asked, QuorumReply) else asked(timeout)

        return wait

    def _follow_rank0(self, runs_on: bool, quorum: int, step: int) -> QuorumReply | Wait:
        if not runs_on:
            return self._put()
        if self._previous is None or self._previous.quorum.id != quorum:
            raise StepError(f"group rank 0 goes on in quorum {quorum}, which this rank does not hold; stopping.")
        return QuorumReply(self._previous.quorum, math.inf, base=State(step, quorum))

    def _put(self) -> QuorumReply | Wait:
        """Ask the group server: the answer, if it came at once, else who waits for it."""
        client, ask = self._context.connection.client, self._ask()
        asked = client.ask(ask)
        return asked if isinstance(asked, QuorumReply) else functools.partial(client.answer, ask, asked)

    def _ask(self) -> Ask:
        c, t = self._context, self._terms
        return Ask(
            call=c.connection.client.next_call(),
            rank=c.options.group_rank,
            state=t.state,
            torn=t.torn,
            shrink_only=self._options.shrink_only,
            commit_failures=t.commit_failures,
            checkpoint_metadata=c.transport.metadata() if c.metadata is None else c.metadata,
            reason=t.reason,
            suspects=t.suspects,
            unreached=t.unreached,
            traits=c.fingerprint.traits,
            step_seconds=c.step_time.seconds,
            patience=c.waits.patience(time.monotonic()),
            keeps=self._keeps,
            votes_late=self.votes_late,
            usual=self._options.timeout if self._options.patience > 0 else 0.0,
        )

    def _request_failed(self, error: Exception) -> Exception:
        c = self._context
        with c.failures.lock:
            if c.step.phase is Phase.ASKING:
                c.step.unanswered()
        if c.status is not None:
            c.status.publish()
        return error

    def _begin(self, reply: QuorumReply) -> Plan:
        """The quorum is here: what it means for this rank. Raises what makes it of no use."""
        c = self._context
        before = c.failures.plan
        if reply.base is not None and before is not None and before.quorum_id == reply.quorum.id:
            plan, top = heal.later(before), reply.base
        else:
            plan = heal.plan(
                reply.quorum, c.connection.replica_id, c.options.group_rank, init_sync=c.init_sync, base=reply.base
            )
            top = plan.top
        part = heal.participation(
            plan,
            contributes_after_heal=self._counts_after_heal,
            mode=c.world_size_mode,
            min_replica_size=c.options.min_replica_size,
        )
        late = any(m.votes_late for m in reply.quorum.members)
        settled = not (plan.heal or plan.sources or plan.offers)
        self.standing = Standing(reply.quorum, plan, part, self._counts_after_heal, late, settled)
        self.heals, self.again, self.votes_late = plan.heal, reply.again, self.votes_late or late
        self.ended = c.failures.begin(plan, top, part.rank, part.size, reply.commit)
        if c.status is not None:
            c.status.publish()
        c.waits.somebody_heals = len(reply.quorum.carriers) < len(reply.quorum.members) and self._others_heal(reply)
        if c.failures.given_up:
            for member in reply.quorum.carriers:
                c.failures.given_up.pop(group_of(member.replica_id), None)
        if reply.base is not None:
            self._check_intact(plan)
        self.computed = None if plan.heal else Computed(top, part)
        self._plan = plan
        if self._previous is None or self._previous.quorum.id != reply.quorum.id:
            self._compare(plan, part.size, reply.quorum)
        return plan

    def _others_heal(self, reply: QuorumReply) -> bool:
        carriers = {m.replica_id for m in reply.quorum.carriers} | {self._context.connection.replica_id}
        return any(m.replica_id not in carriers for m in reply.quorum.members)

    def _compare(self, plan: Plan, size: int, quorum: Quorum) -> None:
        """Tell if the new quorum differs from the one before by more than its id."""
        before = None if self._previous is None else self._previous.quorum
        carriers = {m.replica_id for m in quorum.carriers}
        self._changed = (
            before is None
            or before.config_id != plan.config_id
            or plan.heal
            or bool(plan.dst_ranks)
            or carriers != {m.replica_id for m in before.carriers}
        )
        if self._changed:
            self._context.events.emit(
                "quorum", quorum=plan.quorum_id, number=plan.number, step=plan.top.step,
                participants=size, members=plan.replica_ids, heal=plan.heal,
                healing=[r for r in plan.replica_ids if r not in carriers],
            )  # fmt: skip

    def _configure(self, plan: Plan) -> None:
        c, quorum = self._context, self.standing.quorum if self.standing is not None else None

        def make() -> None:
            c.log.info(
                "reconfiguring for quorum_id=%s (q%s, %s groups)", plan.quorum_id, plan.number, len(plan.replica_ids)
            )
            ours = quorum is not None and all(m.library for m in quorum.members)  # the peer's don't vote
            votes = c.options.commit_vote and ours and c.options.group_rank == 0  # rank 0 speaks for its group
            c.peers.configure(plan, c.connection.replica_id, votes=votes)

        duration = c.failures.configure(plan, make, lambda: silent(quorum, c.connection.replica_id))
        if duration is not None:
            c.events.emit("configure", quorum=plan.quorum_id, config=plan.config_id, duration=duration)
