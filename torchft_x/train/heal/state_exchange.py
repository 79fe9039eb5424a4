"""State between groups in one quorum: what others copy from us, and what we copy (R17)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torchft_x.core.heal import Plan
from torchft_x.core.types import Member, State
from torchft_x.errors import TransferError
from torchft_x.train.context.context import RankContext
from torchft_x.train.heal.overseer import look_after
from torchft_x.transfer.format.flatten import has_dtensors, new_dtensors


class StateExchange:
    """One rank's part in it. `in_place`: the training thread waits, so state may be loaded at once."""

    def __init__(self, context: RankContext, *, in_place: bool) -> None:
        self._context = context
        self._in_place = in_place  # see above
        self._fetched: tuple[Plan, dict[str, Any]] | None = None  # state to be loaded at the commit

    def load_fetched(self) -> None:
        """Load what has come beside the training."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            self._load(*fetched)

    def offer(self, plan: Plan) -> None:
        """Freeze what the others fetch from us (R17). It is kept until a quorum that needs nothing."""
        c = self._context
        with c.failures.lock:
            whole = c.step.state == plan.top and not c.step.torn
        if not plan.offers or not whole:
            c.transport.disallow_checkpoint()
            return
        readers, name = list(plan.dst_ranks), plan.snapshot
        if readers:
            c.log.info("peers need recovery from us %s", readers)
        try:
            with c.state_dicts.read():
                if readers:
                    c.transport.send_checkpoint(
                        readers, name.step, c.full_state(), c.options.timeout, committed_in=name.committed_in
                    )
                elif c.takes_mirrors:
                    c.transport.mirror_checkpoint(name.step, c.full_state(), committed_in=name.committed_in)
        except Exception as e:
            # Our own step is as good as before; those who wanted the state ask again.
            c.log.error("the state can't be offered to %s: %s", readers or list(plan.mirror_of), e)
            c.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=str(e))
            return
        if readers and c.waits.somebody_heals:
            look_after(c, plan)

    def heal(self, plan: Plan) -> None:
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
        c = self._context
        source = plan.sources[0]
        began = time.monotonic()
        c.log.info("healing required: fetching %s from %s", plan.top, source.replica_id)
        c.events.emit("heal_begin", quorum=plan.quorum_id, step=plan.top.step, source=source.replica_id)
        metadata = self._metadata(source)
        more: dict[str, Any] = {}
        if plan.mirrors and c.takes_mirrors:
            more["mirrors"] = [partial(self._metadata, mirror) for mirror in plan.mirrors]
        state = c.transport.recv_checkpoint(
            plan.source_rank or 0,
            metadata,
            plan.snapshot.step,
            max(1.0, c.options.timeout - (time.monotonic() - began)),
            committed_in=plan.snapshot.committed_in,
            into=c.full_state() if in_place else self._new_shards(),
            **more,
        )
        _name(state, plan.top)
        self._check(plan, state, in_place)
        duration = time.monotonic() - began
        c.log.info("healing: %s has come in %.2f s", plan.top, duration)
        done = c.transport.received()
        c.events.emit(
            "heal_end", quorum=plan.quorum_id, step=plan.top.step, duration=duration, bytes=done[0] if done else None
        )
        return state

    def _new_shards(self) -> Any:
        """What a DTensor is received into, where the live one must stay as it is. None beside the training: while a
        forward runs FSDP2 has whole tensors in the model."""
        state = self._context.full_state() if self._in_place else None
        return new_dtensors(state) if has_dtensors(state) else None

    def _metadata(self, source: Member) -> str:
        """Where a carrier serves its state. Raises `TransferError`."""
        c = self._context
        try:
            where = c.connection.client.checkpoint_metadata(source.address, c.options.group_rank, c.options.timeout)
            return str(where)
        except Exception as e:
            raise TransferError(f"{source.replica_id} does not say where its state is: {e}") from e

    def _check(self, plan: Plan, state: Any, torn: bool) -> None:
        """Is it the quorum's state, and can it be loaded? Before anything is."""
        try:
            if not isinstance(state, dict) or set(state) != {"user", "torchft"}:
                raise TransferError("what the source served is not a Manager's state; run one version in all groups.")
            held = read_state(state["torchft"])[0]
            if held != plan.top:
                raise TransferError(f"the source served {held}, but quorum {plan.quorum_id} stands at {plan.top}.")
            self._context.state_dicts.check(state["user"])
        except TransferError as e:
            e.torn = torn
            raise

    def _load(self, plan: Plan, state: dict[str, Any]) -> None:
        """Hand the state to the user's functions; from here on this rank holds it, or pieces."""
        c = self._context
        try:
            c.state_dicts.load(state["user"])
        except Exception as e:
            self._failed(plan, e, torn=True)
            return
        c.failures.healed(*read_state(state["torchft"]))
        c.committed.replace()
        c.log.info("healed to %s", plan.top)

    def _failed(self, plan: Plan, error: Exception, *, torn: bool) -> None:
        self._context.failures.heal_failed(error, torn=torn)
        self._context.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=f"healing failed: {error}")


def _name(state: Any, top: State) -> None:
    """A transport of the user's may carry only what the peer's Manager has in its state: the step names it then."""
    named = state.get("torchft") if isinstance(state, dict) else None
    if isinstance(named, dict) and named.get("step") == top.step:
        named.setdefault("committed_in", top.committed_in)


def read_state(saved: Any) -> tuple[State, int]:
    """(state, batches committed) from a Manager's state dict; the peer's has no ``committed_in``. Raises `TransferError`."""
    try:
        state = State(int(saved["step"]), int(saved.get("committed_in", 0)))
        return state, int(saved["batches_committed"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TransferError(
            f"a Manager's state dict has the keys step, batches_committed and committed_in; this one is {saved!r:.200}."
        ) from None
