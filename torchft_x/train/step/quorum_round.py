"""One quorum, from asking for it until this rank holds its state.

The order matters. The process group comes first, so that the others' reductions are not delayed; then the snapshot for
members that heal from us; then our own heal. `ready` is set after the process group: reductions run beside the rest.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchft_x.core import heal
from torchft_x.core.commit.step import StepPhase
from torchft_x.core.commit.values import LocalVote, Outcome, Terms
from torchft_x.core.data.deal import Deal, deals_of
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.messages.group import Ask, QuorumReply
from torchft_x.core.types import Computed, JoinReason, Part, Quorum, Ranges, State, group_of
from torchft_x.errors import DeadlineError, StepError
from torchft_x.timing import TIMING
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.peer_links import silent
from torchft_x.train.heal import state_exchange

_SOON = 0.001  # seconds in which rank 0 usually starts the step; after them a thread waits beside the forward pass
Wait = Callable[[float], QuorumReply]  # waits the given number of seconds for an answer that is on its way


@dataclass(frozen=True)
class QuorumOptions:
    """Options with which a step asks for its quorum."""

    timeout: float  # seconds until the quorum must have come
    patience: float = 0.0  # further seconds while the lighthouse tells what it waits for, or is away for a while
    allow_heal: bool = True  # members may heal in this quorum
    shrink_only: bool = False  # newcomers are kept out


@dataclass(frozen=True)
class QuorumRole:
    """A quorum and its meaning for this rank: computed once, and read by each further step in the quorum."""

    quorum: Quorum
    plan: QuorumPlan
    part: Part
    counts_after_heal: bool  # the value with which `part` was computed
    votes_late: bool  # some member's script reduces after backward
    steady: bool  # this rank neither heals nor serves a heal, so the next step begins like this one
    deal: Deal | None = None  # slots of each later step in the quorum; None: the script chooses its data itself


class QuorumRound:
    """One request for a quorum, and the work until this rank holds its state.

    Call `continues`; if it returns False, call `run` once, on any thread. Both record errors and never raise.
    """

    def __init__(
        self,
        context: RankContext,
        terms: Terms,
        options: QuorumOptions,
        *,
        in_place: bool,
        counts_after_heal: bool,
        previous: QuorumRole | None,
        keeps: bool = False,
        held: Ranges = (),
        votes_late: bool = False,
    ) -> None:
        self.ready = threading.Event()  # set when the quorum and the process group are ready, or `error` is set
        self.done = threading.Event()  # set when the snapshot and the fetch have ended too
        # Set when the quorum has come or will not. Waits for it need no limit: `run` begins at once, as the round before has
        # ended (`wait_idle`), and `answer` has one, which a pause prolongs while the lighthouse reports it, each second.
        self._answered = threading.Event()
        self.error: Exception | None = None  # why there is no quorum; raised by calls that need one
        self.at_once = False  # the answer came with the request, and nothing is left to wait for
        self.role: QuorumRole | None = None  # set before `ready`, unless error
        self.ended: Outcome | None = None  # outcome of the step before, if this quorum decided it
        self.computed: Computed | None = None  # state and part of the round's gradients; None: they don't count
        self.heals = False  # this rank copies state first
        self.again = False  # all ranks of the group keep the gradients of the step before
        self.votes_late = votes_late  # this rank's or a member's script reduces after backward; the vote is later
        self._changed = False  # whether members or the process group changed, or somebody heals
        self._began = time.monotonic()
        context.step_time.begin(self._began)
        self._context = context
        self._terms = terms
        self._options = options
        self._in_place = in_place  # the heal may overwrite the live tensors, because the training thread waits for it
        self._fetched: tuple[QuorumPlan, dict[str, Any]] | None = None  # state to load before the vote
        self._counts_after_heal = counts_after_heal  # a healed rank contributes in this quorum (synchronous quorums)
        self._previous = previous  # standing in the quorum before this one
        self._keeps = keeps  # the quorum is asked for inside a step whose gradients this rank can reduce again
        self._held = held  # slots of those gradients
        self._asked: QuorumReply | Wait | None = None  # answer, or a wait for it; None before the request
        self._plan: QuorumPlan | None = None  # between the quorum's arrival and `exchange_state`

    # --- the training thread ------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until `ready` is set. Raises the error that kept the quorum from coming, or `DeadlineError`."""
        if not self.ready.is_set():
            waits = self._context.waits
            waits.start_wait(time.monotonic())
            try:
                self._answered.wait()
                if not self.ready.wait(self._context.options.timeout + TIMING.late_round):
                    raise DeadlineError("the quorum has come, and its thread does not come back with a process group.")
            finally:
                waits.end_wait(time.monotonic())
        if self.error is not None:
            raise self.error

    def wait_idle(self) -> None:
        """Wait until this round has ended, as it must before the next one asks. Raises `StepError` if it hangs."""
        self._answered.wait()
        if not self.done.wait(2 * self._context.options.timeout + TIMING.late_round):
            raise StepError("the last quorum's thread does not come back (its snapshot or fetch hangs); stopping.")

    def wait_done(self) -> None:
        """Wait for the fetch (its own deadline is the timeout), then load the fetched state (asynchronous heal)."""
        c = self._context
        if not self.done.wait(2 * c.options.timeout + TIMING.late_round):
            late = DeadlineError(f"the state has not come within {2 * c.options.timeout:g} s.")
            c.failures.heal_failed(late, torn=self._in_place)
            return
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            state_exchange.load(c, *fetched)

    def log_outcome(self, vote: LocalVote, outcome: Outcome, sent: int, took: float) -> None:
        """Emit an event of the step's end, and log it if it failed or members changed.

        `sent` and `took`: bytes and seconds of its reductions.
        """
        c = self._context
        own_part = c.waits.next_step(now := time.monotonic())
        if self._changed or not outcome.committed:
            why = "" if outcome.committed or vote.errored is not None else f" ({outcome.reason})"
            c.log.info("should_commit=%s %s%s", outcome.committed, vote, why)
        c.events.emit(
            "commit" if outcome.committed else "drop", step=outcome.step, quorum=outcome.quorum_id,
            participants=outcome.participants, duration=now - self._began, own_part=own_part, bytes=sent or None,
            reduction=took or None, reason=outcome.reason or None, **(self._position() if outcome.committed else {}),
        )  # fmt: skip

    def _position(self) -> dict[str, int]:
        """Return fields of rank 0's commits about the data, if it is dealt."""
        step = self._context.step
        if self._context.options.group_rank or step.data is None or step.data_options is None:
            return {}
        return {"samples": step.data.committed(step.data_options), "debt": step.data.owed}

    # --- the quorum ---------------------------------------------------------------------------------------------------

    def continues(self) -> bool:
        """Ask for the quorum, and return False if `run` is needed.

        It is not if the group goes on in the quorum it holds and the answer came at once, or if asking failed.
        """
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
                return False
            alike = held is not None and held.plan is before and held.counts_after_heal == self._counts_after_heal
            if held is not None and held.steady and alike:
                self._go_on(reply, held)
            else:
                self._configure(self._begin(reply))
                if before.offers:
                    self._context.transport.disallow_checkpoint()
            self.at_once = True
        except Exception as e:
            self.error = self._request_failed(e)
        self._end()
        return True

    def _go_on(self, reply: QuorumReply, held: QuorumRole) -> None:
        """Begin the next step of a steady quorum with the standing of the last step."""
        c, plan = self._context, held.plan
        assert reply.base is not None, "it goes on from somewhere"
        with c.failures.lock:
            size = len(held.part.contributors)
            self.ended = c.step.begin(plan.quorum_id, reply.base, held.part.rank, size, reply.commit, held.deal)
        self.role, self.again = held, reply.again
        self.computed = _computed(reply.base, held.part, held.deal)
        self.votes_late = self.votes_late or held.votes_late
        self._plan = plan
        self._check_intact(plan)
        if c.failures.broken or c.step.error is not None:
            self._configure(plan)

    def _check_intact(self, plan: QuorumPlan) -> None:
        """Report a failure if the group goes on in its quorum but this rank's process group is broken."""
        if self._terms.reason is JoinReason.FAILED:
            error = StepError("this rank's process group broke after the last commit.")
            self._context.failures.fail(error, plan.quorum_id)

    def run(self, *, exchange: bool = True) -> None:
        """Get the quorum, configure the process group and exchange state.

        Pass exchange=False while the state is being changed, and call `exchange_state` later.
        """
        try:
            try:
                asked = self._asked or self._request()
                limit = self._options.timeout + self._options.patience
                reply = asked if isinstance(asked, QuorumReply) else asked(limit)
                self._answered.set()
                plan = self._begin(reply)
            except Exception as e:
                raise self._request_failed(e) from None
            self._configure(plan)
            self.ready.set()
            if exchange:
                self.exchange_state()
        except Exception as e:
            self.error = e
        finally:
            self._end()

    def _end(self) -> None:
        for event in (self._answered, self.ready, self.done):
            event.set()

    def run_inline(self, *, exchange: bool = True) -> None:
        """Call `run` on the training thread, and count its time as waiting for others."""
        waits = self._context.waits
        waits.start_wait(time.monotonic())
        try:
            self.run(exchange=exchange)
        finally:
            waits.end_wait(time.monotonic())

    def exchange_state(self) -> None:
        """Offer the state that others need, and copy the state this rank needs. Only the first call has an effect."""
        plan, self._plan = self._plan, None
        if plan is not None and self._options.allow_heal:
            state_exchange.offer(self._context, plan)
            state = state_exchange.fetch(self._context, plan, waits=self._in_place) if plan.heal else None
            if state is not None and self._in_place:
                state_exchange.load(self._context, plan, state)
                self._computes_at(plan)
            elif state is not None:
                self._fetched = plan, state

    def _computes_at(self, plan: QuorumPlan) -> None:
        """Set `computed` after a heal, if this rank holds the whole state of the quorum."""
        step = self._context.step
        with self._context.failures.lock:
            whole = step.state == plan.top and not step.torn
        if whole and self.role is not None:
            self.computed = _computed(plan.top, self.role.part, step.deal)

    def _request(self) -> QuorumReply | Wait:
        """Ask for the quorum, or follow rank 0, which starts the step for the whole group after each commit."""
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
        """Ask the group server. Return the answer if it came at once, else a function that waits for it."""
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
            checkpoint_metadata=c.transport.metadata(),
            reason=t.reason,
            suspects=t.suspects,
            unreached=t.unreached,
            traits=c.fingerprint.traits,
            step_seconds=c.step_time.seconds,
            patience=c.waits.patience(time.monotonic()),
            keeps=self._keeps,
            votes_late=self.votes_late,
            usual=self._options.timeout if self._options.patience > 0 else 0.0,
            held=self._held,
            weight=c.step.data_options.weight if c.step.data_options is not None else 1,
        )

    def _request_failed(self, error: Exception) -> Exception:
        c = self._context
        with c.failures.lock:
            if c.step.phase is StepPhase.ASKING:
                c.step.ask_failed()
        c.status.publish()
        return error

    def _begin(self, reply: QuorumReply) -> QuorumPlan:
        """Compute what the quorum means for this rank, and begin the step in it. Raises if the quorum is of no use."""
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
            plan, contributes_after_heal=self._counts_after_heal, mode=c.world_size_mode,
            min_replica_size=c.options.min_replica_size,
        )  # fmt: skip
        late = any(m.votes_late for m in reply.quorum.members)
        steady = not (plan.heal or plan.sources or plan.offers)
        first, later = deals_of(reply.quorum, part, c.step.data_options)
        self.role = QuorumRole(reply.quorum, plan, part, self._counts_after_heal, late, steady, later)
        deal = first if reply.base is None else later
        self.heals, self.again, self.votes_late = plan.heal, reply.again, self.votes_late or late
        self.ended = c.failures.begin(plan, top, part.rank, part.size, reply.commit, deal)
        c.status.publish()
        c.waits.somebody_heals = not {*plan.carriers, c.connection.replica_id}.issuperset(plan.replica_ids)
        if c.failures.given_up:
            for replica_id in plan.carriers:
                c.failures.given_up.pop(group_of(replica_id), None)
        if reply.base is not None:
            self._check_intact(plan)
        self.computed = None if plan.heal else _computed(top, part, deal)
        self._plan = plan
        if self._previous is None or self._previous.quorum.id != reply.quorum.id:
            self._compare(plan, part.size)
        return plan

    def _compare(self, plan: QuorumPlan, size: int) -> None:
        """Emit a quorum event if the new quorum differs from the one before by more than its id."""
        before = None if self._previous is None else self._previous.plan
        self._changed = (
            before is None
            or before.config_id != plan.config_id
            or plan.heal
            or bool(plan.dst_ranks)
            or set(before.carriers) != set(plan.carriers)
        )
        if self._changed:
            self._context.events.emit(
                "quorum", quorum=plan.quorum_id, number=plan.number, step=plan.top.step,
                participants=size, members=plan.replica_ids, heal=plan.heal,
                healing=[r for r in plan.replica_ids if r not in plan.carriers],
            )  # fmt: skip

    def _configure(self, plan: QuorumPlan) -> None:
        c, quorum = self._context, self.role.quorum if self.role is not None else None

        def make() -> None:
            c.log.info(
                "reconfiguring for quorum_id=%s (q%s, %s groups)", plan.quorum_id, plan.number, len(plan.replica_ids)
            )
            votes = c.options.commit_vote and c.options.group_rank == 0  # rank 0 votes for its group
            c.peers.configure(plan, c.connection.replica_id, votes=votes)

        duration = c.failures.configure(plan, make, lambda: silent(quorum, c.connection.replica_id))
        if duration is not None:
            c.events.emit("configure", quorum=plan.quorum_id, config=plan.config_id, duration=duration)


def _computed(state: State, part: Part, deal: Deal | None) -> Computed:
    return Computed(state, part, None if deal is None else deal.share(part.rank))
