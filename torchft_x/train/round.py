"""One quorum, from asking for it until this rank holds its state.

Order matters. The process group comes first, so that the others' reductions are not held up; then the snapshot for
those who heal from us; then our own heal. `ready` is set in between: reductions run beside the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from torchft_x.core import recovery
from torchft_x.core.recovery import Plan
from torchft_x.core.step import LocalVote, Outcome, Terms
from torchft_x.core.traits import Traits
from torchft_x.core.types import Quorum, State, group_number
from torchft_x.errors import DeadlineError, StepError, TransferError
from torchft_x.train.parts import Parts

_PATIENCE = 5.0  # seconds over the quorum's and the heal's own deadlines until we stop waiting for their thread


class Round:
    """See the module. `run` is called once, on the training thread or beside it; it reports and never raises.

    Args:
        in_place: the heal may overwrite the live tensors now, because the training thread waits for it.
        counts_after_heal: a healed rank contributes in this very quorum (synchronous quorums).
    """

    def __init__(
        self,
        parts: Parts,
        terms: Terms,
        *,
        traits: Traits,
        allow_heal: bool,
        shrink_only: bool,
        timeout: float,
        patience: float = 0.0,
        in_place: bool,
        counts_after_heal: bool,
        previous: Quorum | None,
    ) -> None:
        self.ready = threading.Event()  # the quorum and the process group are there, or `error` says why not
        self.done = threading.Event()  # also the snapshot and the fetch
        self.error: Exception | None = None  # there is no quorum; raised to whoever needs it
        self.quorum: Quorum | None = None  # set before `ready`, unless error
        self._changed = False  # something happened: other members, a new process group, a heal
        self._began = time.monotonic()
        self._parts = parts
        self._terms = terms
        self._traits = traits  # what must be alike in all groups
        self._allow_heal = allow_heal
        self._shrink_only = shrink_only
        self._timeout = timeout  # seconds, of the quorum
        self._patience = patience  # seconds more, while the lighthouse is away or waits for a lease
        self._in_place = in_place  # the training thread waits: state may be loaded at once
        self._counts_after_heal = counts_after_heal
        self._previous = previous  # quorum before this one
        self._fetched: tuple[Plan, dict[str, Any]] | None = None  # state to be loaded at the commit

    # --- the training thread ------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Raises what kept the quorum from coming."""
        if not self.ready.wait(self._timeout + self._patience + self._parts.options.timeout + _PATIENCE):
            raise DeadlineError(
                f"no quorum within {self._timeout + self._patience:g} s, and its thread does not come back."
            )
        if self.error is not None:
            raise self.error

    def wait_idle(self) -> None:
        """Its thread must have ended before the next quorum asks. Raises `StepError`."""
        if not self.done.wait(self._timeout + self._patience + 2 * self._parts.options.timeout + _PATIENCE):
            raise StepError("the last quorum's thread does not come back (its snapshot or fetch hangs); stopping.")

    def wait_done(self) -> None:
        """Wait for the fetch (its own deadline is the timeout), then load what came (asynchronous heal)."""
        p = self._parts
        if not self.done.wait(2 * p.options.timeout + _PATIENCE):
            late = DeadlineError(f"the state has not come within {2 * p.options.timeout:g} s.")
            p.guard.heal_failed(late, torn=self._in_place)
            return
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            self._load(*fetched)

    def tell(self, vote: LocalVote, outcome: Outcome) -> None:
        """Log how the step ended: loudly only if something happened in it."""
        p = self._parts
        level = logging.DEBUG if outcome.committed and not self._changed else logging.INFO
        why = "" if outcome.committed or vote.errored is not None else f" ({outcome.reason})"
        p.log.log(level, "should_commit=%s %s%s", outcome.committed, vote, why)
        p.events.emit(
            "commit" if outcome.committed else "drop",
            step=outcome.step,
            quorum=outcome.quorum_id,
            participants=outcome.participants,
            duration=time.monotonic() - self._began,
            reason=outcome.reason or None,
        )

    # --- the quorum ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            plan = self._ask()
            self._configure(plan)
            self.ready.set()
            if self._allow_heal:
                self._offer(plan)
                self._heal(plan)
        except Exception as e:
            self.error = e
        finally:
            self.ready.set()
            self.done.set()

    def _ask(self) -> Plan:
        """The quorum and what it means for this rank. Raises what kept it from coming."""
        p, t = self._parts, self._terms
        try:
            reply = p.link.client.quorum(
                group_rank=p.options.group_rank,
                state=t.state,
                torn=t.torn,
                checkpoint_metadata=p.transport.metadata(),
                shrink_only=self._shrink_only,
                init_sync=p.init_sync,
                commit_failures=t.commit_failures,
                reason=t.reason,
                suspects=t.suspects,
                traits=self._traits,
                timeout=self._timeout,
                patience=self._patience,
            )
            plan = recovery.plan(reply.quorum, p.link.replica_id, p.options.group_rank, init_sync=p.init_sync)
        except Exception:
            with p.guard.lock:
                p.step.unanswered()
            raise
        rank, size = recovery.participation(
            plan,
            contributes_after_heal=self._counts_after_heal,
            mode=p.mode,
            min_replica_size=p.options.min_replica_size,
        )
        self.quorum = reply.quorum
        before = self._previous
        carriers = {m.replica_id for m in reply.quorum.carriers}
        self._changed = (
            before is None
            or before.config_id != plan.config_id
            or plan.heal
            or bool(plan.dst_ranks)
            or carriers != {m.replica_id for m in before.carriers}
        )
        p.guard.begin(plan, rank, size)
        if self._changed:
            p.events.emit(
                "quorum", quorum=plan.quorum_id, number=plan.number, step=plan.top.step,
                participants=size, members=plan.replica_ids, heal=plan.heal,
                healing=[r for r in plan.replica_ids if r not in carriers],
            )  # fmt: skip
        return plan

    def _configure(self, plan: Plan) -> None:
        p, o = self._parts, self._parts.options
        group = group_number(p.link.replica_id)

        def make() -> None:
            p.log.info(
                "reconfiguring for quorum_id=%s (q%s, %s groups)", plan.quorum_id, plan.number, len(plan.replica_ids)
            )
            p.pg.configure(
                f"{plan.store_address}/torchft_x/{plan.config_id}/{o.group_rank}",
                p.link.replica_id,
                plan.replica_rank,
                plan.replica_world_size,
                quorum_id=plan.config_id,
                group_rank=o.group_rank,
                group_world_size=o.group_world_size,
                global_ranks=None if group is None else [group * o.group_world_size + o.group_rank],
            )

        duration = p.guard.configure(plan, make)
        if duration is not None:
            p.events.emit("configure", quorum=plan.quorum_id, config=plan.config_id, duration=duration)

    # --- state --------------------------------------------------------------------------------------------------------

    def _offer(self, plan: Plan) -> None:
        """Freeze what the others fetch from us (R17). It is kept until a quorum that needs nothing."""
        p = self._parts
        with p.guard.lock:
            whole = p.step.state == plan.top and not p.step.torn
        if not plan.dst_ranks or not whole:
            p.transport.disallow_checkpoint()
            return
        p.log.info("peers need recovery from us %s", list(plan.dst_ranks))
        try:
            with p.states.read():
                p.transport.send_checkpoint(
                    list(plan.dst_ranks), plan.top.step, p.full_state(), p.options.timeout,
                    committed_in=plan.top.committed_in,
                )  # fmt: skip
        except Exception as e:
            # Our own step is as good as before; those who wanted the state ask again.
            p.log.error("the state can't be offered to %s: %s", list(plan.dst_ranks), e)
            p.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=str(e))

    def _heal(self, plan: Plan) -> None:
        """Fetch the top. With the training thread waiting it goes into place, else it is kept for the commit."""
        if not plan.heal:
            return
        # Before the first commit there may be nobody else to get weights from: don't overwrite ours with half of
        # another's. Later a torn rank costs nothing: its own state is of no use any more.
        in_place = self._in_place and plan.top.step > 0
        try:
            state = self._fetch(plan, in_place)
        except Exception as e:
            # Our transports know whether they wrote; of others the worst is assumed.
            self._failed(plan, e, torn=in_place and getattr(e, "torn", True))
            return
        if self._in_place:
            self._load(plan, state)
        else:
            self._fetched = (plan, state)

    def _fetch(self, plan: Plan, in_place: bool) -> dict[str, Any]:
        p = self._parts
        source = plan.sources[0]
        began = time.monotonic()
        p.log.info("healing required: fetching %s from %s", plan.top, source.replica_id)
        p.events.emit("heal_begin", quorum=plan.quorum_id, step=plan.top.step, source=source.replica_id)
        try:
            metadata = p.link.client.checkpoint_metadata(source.address, p.options.group_rank, p.options.timeout)
        except Exception as e:
            raise TransferError(f"{source.replica_id} does not say where its state is: {e}") from e
        state = p.transport.recv_checkpoint(
            plan.source_rank or 0,
            metadata,
            plan.top.step,
            max(1.0, p.options.timeout - (time.monotonic() - began)),
            committed_in=plan.top.committed_in,
            into=p.full_state() if in_place else None,
        )
        self._check(plan, state, in_place)
        duration = time.monotonic() - began
        p.log.info("healing: %s has come in %.2f s", plan.top, duration)
        p.events.emit("heal_end", quorum=plan.quorum_id, step=plan.top.step, duration=duration)
        return state

    def _check(self, plan: Plan, state: Any, torn: bool) -> None:
        """Is it the quorum's state, and can it be loaded? Before anything is."""
        try:
            if not isinstance(state, dict) or set(state) != {"user", "torchft"}:
                raise TransferError("what the source served is not a Manager's state; run one version in all groups.")
            held = read_state(state["torchft"])[0]
            if held != plan.top:
                raise TransferError(f"the source served {held}, but quorum {plan.quorum_id} stands at {plan.top}.")
            self._parts.states.check(state["user"])
        except TransferError as e:
            e.torn = torn
            raise

    def _load(self, plan: Plan, state: dict[str, Any]) -> None:
        """Hand the state to the user's functions; from here on this rank holds it, or pieces."""
        p = self._parts
        try:
            p.states.load(state["user"])
        except Exception as e:
            self._failed(plan, e, torn=True)
            return
        with p.guard.lock:
            p.step.healed(*read_state(state["torchft"]))
        p.log.info("healed to %s", plan.top)

    def _failed(self, plan: Plan, error: Exception, *, torn: bool) -> None:
        self._parts.guard.heal_failed(error, torn=torn)
        self._parts.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=f"healing failed: {error}")


def read_state(saved: Any) -> tuple[State, int]:
    """(state, batches committed) from a Manager's state dict; the peer's has no ``committed_in``. Raises `TransferError`."""
    try:
        state = State(int(saved["step"]), int(saved.get("committed_in", 0)))
        return state, int(saved["batches_committed"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TransferError(
            f"a Manager's state dict has the keys step, batches_committed and committed_in; this one is {saved!r:.200}."
        ) from None
