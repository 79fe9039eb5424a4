"""Offers this rank's state to other groups in one quorum, and copies theirs if this rank is behind (R17)."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from torchft_x.core.data.state import Position, read_position
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.training.heal_limits import HealWait
from torchft_x.core.types import Member, State, group_of, listed
from torchft_x.errors import CollectiveError, ConfigError, TransferError
from torchft_x.timing import POLL
from torchft_x.train.context.context import RankContext
from torchft_x.transfer.format.flatten import has_dtensors, new_dtensors


def offer(context: RankContext, plan: QuorumPlan) -> None:
    """Freeze the state that others fetch from this rank (R17). It is kept until a quorum that needs none."""
    c = context
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
        # Our own step is not affected, and the healers ask again.
        c.log.error("the state can't be offered to %s: %s", readers or list(plan.mirror_of), e)
        c.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=str(e))
        return
    if readers and c.waits.somebody_heals:
        look_after(c, plan)


def fetch(context: RankContext, plan: QuorumPlan, *, waits: bool) -> dict[str, Any] | None:
    """Return the top, fetched from another group, for `load`; None if that failed, which is recorded.

    `waits`: the training thread waits for the state, so that it may be received into the live tensors.
    """
    # Before the first commit no other group may have weights: don't overwrite ours with half of another's. Later a
    # torn rank loses nothing, because its own state is outdated.
    in_place = waits and plan.top.step > 0
    try:
        return _receive(context, plan, waits=waits, in_place=in_place)
    except Exception as e:
        # Our transports report whether they wrote; for others assume that they did.
        _failed(context, plan, e, torn=in_place and getattr(e, "torn", True))
        return None


def load(context: RankContext, plan: QuorumPlan, state: dict[str, Any]) -> None:
    """Load a fetched state through the user's functions. If that fails, this rank is torn."""
    c = context
    try:
        c.state_dicts.load(state["user"])
    except Exception as e:
        _failed(c, plan, e, torn=True)
        return
    c.failures.healed(*read_state(state["torchft"]))
    c.committed.replace()
    c.log.info("healed to %s", plan.top)


def _receive(context: RankContext, plan: QuorumPlan, *, waits: bool, in_place: bool) -> dict[str, Any]:
    c, source = context, plan.sources[0]
    began = time.monotonic()
    c.log.info("healing required: fetching %s from %s", plan.top, source.replica_id)
    c.events.emit("heal_begin", quorum=plan.quorum_id, step=plan.top.step, source=source.replica_id)
    metadata = _metadata(c, source)
    more: dict[str, Any] = {}
    if plan.mirrors and c.takes_mirrors:
        more["mirrors"] = [partial(_metadata, c, mirror) for mirror in plan.mirrors]
    # Beside the training FSDP2 has whole tensors in the model while a forward runs.
    own = c.full_state() if waits else None
    state = c.transport.recv_checkpoint(
        plan.source_rank or 0,
        metadata,
        plan.snapshot.step,
        max(1.0, c.options.timeout - (time.monotonic() - began)),
        committed_in=plan.snapshot.committed_in,
        into=own if in_place else new_dtensors(own) if has_dtensors(own) else None,
        **more,
    )
    _name(state, plan.top)
    _check(c, plan, state, torn=in_place)
    duration = time.monotonic() - began
    c.log.info("healing: %s has come in %.2f s", plan.top, duration)
    done = c.transport.received()
    c.events.emit(
        "heal_end", quorum=plan.quorum_id, step=plan.top.step, duration=duration, bytes=done[0] if done else None
    )
    return state


def _metadata(context: RankContext, source: Member) -> str:
    """Return the address at which a carrier serves its state. Raises `TransferError`."""
    c = context
    try:
        where = c.connection.client.checkpoint_metadata(source.address, c.options.group_rank, c.options.timeout)
        return str(where)
    except Exception as e:
        raise TransferError(f"{source.replica_id} does not say where its state is: {e}") from e


def _check(context: RankContext, plan: QuorumPlan, state: Any, *, torn: bool) -> None:
    """Raise `TransferError`, before anything is loaded, unless this is the quorum's state and can be loaded."""
    try:
        if not isinstance(state, dict) or set(state) != {"user", "torchft"}:
            raise TransferError("what the source served is not a Manager's state; run one version in all groups.")
        held = read_state(state["torchft"])[0]
        if held != plan.top:
            raise TransferError(f"the source served {held}, but quorum {plan.quorum_id} stands at {plan.top}.")
        context.state_dicts.check(state["user"])
    except TransferError as e:
        e.torn = torn
        raise


def _failed(context: RankContext, plan: QuorumPlan, error: Exception, *, torn: bool) -> None:
    context.failures.heal_failed(error, torn=torn)
    context.events.emit("error", quorum=plan.quorum_id, step=plan.top.step, reason=f"healing failed: {error}")


def _name(state: Any, top: State) -> None:
    """Add `committed_in` to a state from a user's transport that carries only the keys of torchft's Manager."""
    named = state.get("torchft") if isinstance(state, dict) else None
    if isinstance(named, dict) and named.get("step") == top.step:
        named.setdefault("committed_in", top.committed_in)


def read_state(saved: Any) -> tuple[State, int, Position | None]:
    """Return (state, batches committed, position in the data) from a Manager's state dict.

    torchft's has no ``committed_in``. The position is None if the script chooses its data itself.

    Raises `TransferError` if it is not a Manager's state dict.
    """
    try:
        state = State(int(saved["step"]), int(saved.get("committed_in", 0)))
        data = read_position(saved["data"]) if "data" in saved else None
        return state, int(saved["batches_committed"]), data
    except ConfigError as e:
        raise TransferError(str(e)) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TransferError(
            f"a Manager's state dict has the keys step, batches_committed and committed_in; this one is {saved!r:.200}."
        ) from None


def look_after(context: RankContext, plan: QuorumPlan) -> None:
    """Start a thread that watches the copies until the next quorum, and fails the step if they don't progress.

    If the transport can't report progress, this does nothing, and the timeout applies.
    """
    if context.transport.progress() is None:
        return
    threading.Thread(target=_oversee, args=(context, plan), name="torchft_x-heal", daemon=True).start()


def _oversee(context: RankContext, plan: QuorumPlan) -> None:
    names = tuple(plan.replica_ids[rank] for rank in plan.dst_ranks)
    groups = [group_of(name) for name in names]
    given_up = context.failures.given_up
    healers = plan.replica_world_size - plan.max_world_size
    all_heals = len(names) == healers and context.options.group_world_size == 1
    copying = HealWait(time.monotonic(), max(given_up[g] for g in groups), all_heals=all_heals)
    until = time.monotonic() + context.options.timeout  # every wait for the healers has ended by then
    while context.step.quorum_id == plan.quorum_id and time.monotonic() < until:
        time.sleep(POLL)
        progress = context.transport.progress()
        if progress is None:
            return
        signs, done = progress
        still = copying.poll(
            time.monotonic(), signs=signs, done=done, lateness=context.waits.lateness,
            waits_since=context.waits.waits_since,
        )  # fmt: skip
        if still and context.step.quorum_id == plan.quorum_id:
            given_up.update(groups if done else ())
            who = listed(names)
            why = (
                f"{who} has the state and does not come for {still:.1f} s"
                if done
                else f"{who} copies the state, and nothing has moved for {still:.1f} s"
            )
            error = CollectiveError(f"{why}; the lighthouse is asked to go on with those who are there", names)
            context.failures.fail(error, plan.quorum_id)
            return
