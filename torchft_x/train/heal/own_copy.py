"""Makes and loads this rank's own copies in memory (`train.context.memory_checkpoint`).

Copies are made between two steps. One is loaded at an attempt's start, or after a heal that broke off. Both happen on
the training thread, before it asks for a quorum.
"""

from __future__ import annotations

import time

from torchft_x.core.commit.step import StepPhase
from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.memory_checkpoint import MemoryCheckpoint
from torchft_x.train.heal.state_exchange import read_state

_MOST_WORDS = 400  # characters of a reason in a message


def before_asking(context: RankContext, memory: MemoryCheckpoint, *, copies: bool) -> None:
    """Load the group's copy if one is to be loaded; else make a copy if one is due, and this is a moment for `copies`.

    Raises `TransferError` if the copy can't be loaded.
    """
    with context.failures.lock:
        state, idle = context.step.state, context.step.phase is StepPhase.IDLE
    if not idle:
        return  # the last step was given up in the middle
    copy = memory.to_load(state)
    if copy is not None:
        _load(context, memory, copy)
    elif copies:
        copy_now(context, memory)


def copy_now(context: RankContext, memory: MemoryCheckpoint) -> None:
    """Copy this rank's state, which the last commit led to, if a copy is due. Call it between two steps."""
    state = _whole_state(context)
    if state is not None:
        memory.maybe_copy(state, context.full_state)


def copy_last(context: RankContext, memory: MemoryCheckpoint) -> None:
    """Copy the final state for the group's next attempt, because this rank leaves before the end of the training."""
    state = _whole_state(context)
    if state is not None and state.step > 0:
        memory.copy_last(state, context.full_state)


def _whole_state(context: RankContext) -> State | None:
    """Return this rank's complete state; None if the rank is torn or inside a step, or the state can't be read."""
    with context.failures.lock:
        state, idle, torn = context.step.state, context.step.phase is StepPhase.IDLE, context.step.torn
    return state if idle and not torn and context.state_dicts.readable else None


def _load(context: RankContext, memory: MemoryCheckpoint, copy: State) -> None:
    c, began = context, time.monotonic()
    try:
        came = memory.read(copy, c.full_state())
        if not isinstance(came, dict) or not {"user", "torchft"} <= set(came):
            raise TransferError("it is not a Manager's state.")
        state, batches, data = read_state(came["torchft"])
        if state != copy:
            raise TransferError(f"it is of {state}.")
        c.state_dicts.load(came["user"])
    except Exception as e:
        memory.drop()
        why = " ".join(str(e).split())[:_MOST_WORDS]
        raise TransferError(
            f"the copy of {copy} that this rank's supervisor holds in memory can't be loaded ({why}); it is dropped, and this "
            "group's next start goes on without it. Start the job anew if the script was changed meanwhile."
        ) from e
    with c.failures.lock:
        c.step.restore(copy, batches, data)
    duration = time.monotonic() - began
    c.log.info("this group goes on from %s, of which its supervisor holds a copy in memory (%.2f s)", copy, duration)
    c.events.emit("restored", step=copy.step, quorum=copy.committed_in, duration=duration)
