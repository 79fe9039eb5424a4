"""Copies of this rank's state in the memory of its supervisor, with which a later attempt may begin.

`core.training.memory_checkpoint` decides when, where and which copies are made; `transfer.memory_slots` defines their
form. The training thread copies between two steps, because only then the state is that of one step. Work that needs the
copy and not the state (digests, more memory) is done beside the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from torchft_x.core.training.memory_checkpoint import CopyDecision, CopySchedule, CopyVote, HeldCopies
from torchft_x.core.types import State
from torchft_x.errors import TorchftXError, TransferError
from torchft_x.observe.events import EventLog
from torchft_x.timing import PATIENCE
from torchft_x.train.setup.connect import GroupConnection
from torchft_x.train.setup.options import Options
from torchft_x.transfer.memory_slots import MemorySlot
from torchft_x.transfer.shared_memory import Buffer

_SEALED = 0.5  # seconds to wait for a running copy before its slot's memory is lent

_lock = threading.Lock()  # guards `_taken`
_taken: set[str] = set()  # names of slots that Managers of this process have taken


def open_slots(options: Options) -> list[MemorySlot]:
    """Open this rank's slots; empty if it has none. Only the first Manager of a process gets them."""
    limit, *ranks = options.memory_slots.split(";")
    names = ranks[options.local_rank].split(",") if 0 <= options.local_rank < len(ranks) and limit.isdigit() else []
    with _lock:
        free = [name for name in names if name not in _taken]
        _taken.update(free)
    slots = [slot for name in free if (slot := MemorySlot.open(name, int(limit))) is not None]
    return slots if len(slots) > 1 else []


def open_memory(
    options: Options, connection: GroupConnection, events: EventLog, log: logging.LoggerAdapter[Any]
) -> MemoryCheckpoint | None:
    """Return this rank's memory checkpoint; None if it has no slots. All ranks agree on the copy to begin with."""
    slots = open_slots(options)
    held = [slot.state for slot in slots]
    common = connection.newest_copy([s for s in held if s is not None]) if options.memory_slots else None
    return MemoryCheckpoint(slots, held, common, events, log) if slots else None


class MemoryCheckpoint:
    """Memory checkpoint of one rank. Owns its slots, and makes and loads copies. Used by the training thread."""

    def __init__(
        self,
        slots: list[MemorySlot],
        holds: list[State | None],
        common: State | None,
        events: EventLog,
        log: logging.LoggerAdapter[Any],
    ) -> None:
        self._events = events
        self._log = log
        self._slots = slots  # two of them
        self._holds = holds  # state of the complete copy in each slot
        self._copies = HeldCopies(common)
        self._schedule = CopySchedule()  # used on rank 0 only
        self._worker: threading.Thread | None = None  # seals a copy or grows slots, beside the training
        self._off = ""  # why nothing is copied; or empty
        self._announced = False  # rank 0 knows of this rank's last copy, and may have made it the group's
        self._returned: Callable[[], bool] | None = None  # whether the lent slot is free; None: none lent

    # --- with each vote ------------------------------------------------------------------------------------------------

    def vote(self, *, torn: bool, behind: bool) -> CopyVote:
        """Return the part of this rank's vote about copies. No copy is ordered before the running one has its seal."""
        idle = not self._off and self._none_is_lent() and (self._worker is None or not self._worker.is_alive())
        vote = self._copies.vote(self._holds, idle=idle, torn=torn, behind=behind)
        self._announced = bool(vote & CopyVote.HOLDS)
        return vote

    def decide(self, votes: Collection[CopyVote], state: State | None, step_seconds: float) -> CopyDecision:
        """Decide for the group, on rank 0. `state`: as in `receive`."""
        due = state is not None and self._schedule.due(state.step, step_seconds)
        return self._copies.decide(votes, due=due, commit=state is not None)

    def receive(self, decision: CopyDecision, state: State | None) -> None:
        """Apply rank 0's decision. `state` is the state that the commit leads to; None if nothing is committed."""
        self._announced = False
        if not decision and self._copies.common is None:
            return  # the common case: no copy is held
        self._copies.receive(decision, state)
        for i, held in enumerate(self._holds):
            if state is not None and held is not None and held > state:  # a copy of an abandoned history
                self._slots[i].erase()
                self._holds[i] = None

    # --- between two steps ---------------------------------------------------------------------------------------------

    @property
    def is_pending(self) -> bool:
        return self._copies.is_pending

    def maybe_copy(self, state: State, full_state: Callable[[], Any]) -> None:
        """Copy the complete `state` at the start of a step, if a copy of it is wanted. Never raises."""
        wanted, self._copies.wanted = self._copies.wanted, None
        if wanted is None or wanted != state or self._off or not self._none_is_lent():
            return
        self._copy(state, full_state, self._begin)

    def copy_last(self, state: State, full_state: Callable[[], Any]) -> None:
        """Copy the complete `state` for the group's next attempt, as this rank leaves before the end of the training.

        It waits for the copy, and never raises.
        """
        if self._worker is not None:
            self._worker.join(PATIENCE)
        busy = self._worker is not None and self._worker.is_alive()
        if self._off or busy or state in self._holds or not self._none_is_lent():
            return
        for _ in range(2):  # the first time it may have to grow the slots instead
            if not self._off and self._copy(state, full_state, lambda work, *args: work(*args)):
                return

    def _copy(self, state: State, full_state: Callable[[], Any], run: Callable[..., None]) -> bool:
        """Copy `state`, and let `run` seal the copy. If the slots are too small, return False and let `run` grow them."""
        began = time.thread_time()  # a busy machine makes a copy later, not dearer
        index, written = self._copies.slot(self._holds), False
        try:
            values: dict[str, Any] = full_state()
            self._holds[index] = None
            written = self._slots[index].write(state, values)
            missing = [] if written else [(slot, slot.room_for(values)) for slot in self._slots]
        except (TorchftXError, RuntimeError, OSError) as e:
            self._stop(str(e))
            return False
        finally:
            if not written:
                self._holds[index] = self._slots[index].state
        if written:
            run(self._seal, index, state, time.thread_time() - began)
        else:
            run(self._grow, missing)
        return written

    def to_load(self, state: State) -> State | None:
        """Return the state of the copy to load, if there is one (`HeldCopies.to_load`)."""
        return self._copies.to_load(state)

    def read(self, state: State, into: Any) -> Any:
        """Read the copy of `state` into the tensors of `into` where they fit. Drops all copies on `TransferError`."""
        slot = self._slots[self._holds.index(state)]
        try:
            return slot.read(into)
        except TransferError:
            self.drop()
            raise

    def drop(self) -> None:
        """Erase all copies, so that the next attempt begins without them."""
        for i, slot in enumerate(self._slots):
            slot.erase()
            self._holds[i] = None

    def close(self) -> None:
        self._off = self._off or "the Manager was shut down"
        if self._worker is not None:
            self._worker.join(PATIENCE)
            if self._worker.is_alive():
                return  # the thread ends with the process
        for slot in self._slots:
            slot.close()
        self._slots, self._holds = [], []

    # --- lent to the transport that offers the state -----------------------------------------------------------------

    def lends(self, nbytes: int) -> bool:
        """Return whether the slots usually have memory for `nbytes`."""
        return not self._off and all(slot.may_take(nbytes) for slot in self._slots)

    def lend(self, nbytes: int, returned: Callable[[], bool]) -> Buffer | None:
        """Lend the memory of the slot for the next copy, which then waits until `returned` returns True.

        The group's copy stays. Return None if there is no memory to spare.
        """
        if self._off or self._announced or not self._none_is_lent():
            return None
        if self._worker is not None:
            self._worker.join(_SEALED)
            if self._worker.is_alive():
                return None
        index = self._copies.slot(self._holds)
        buffer = self._slots[index].lend(nbytes)
        if buffer is not None:
            self._holds[index], self._returned = None, returned
        return buffer

    def _none_is_lent(self) -> bool:
        if self._returned is not None and self._returned():
            self._returned = None
        return self._returned is None

    # --- beside the training -------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        self._worker = threading.Thread(target=work, args=args, name="torchft_x-memory", daemon=True)
        self._worker.start()

    def _seal(self, index: int, state: State, copied: float) -> None:
        began = time.thread_time()
        self._slots[index].seal()
        self._holds[index] = state
        took = copied + time.thread_time() - began
        self._schedule.copied(took)
        self._events.emit("held", step=state.step, duration=took)

    def _grow(self, missing: list[tuple[MemorySlot, int]]) -> None:
        try:
            for slot, nbytes in missing:
                if nbytes:
                    slot.grow(nbytes)
        except (TorchftXError, RuntimeError, OSError, ValueError) as e:
            self._stop(str(e))

    def _stop(self, why: str) -> None:
        self._off = why
        self._log.warning(
            "no copy of the state is held in memory: %s If all groups die at once, the job goes on from its last checkpoint on "
            "disk.", why if why.endswith(".") else f"{why}.",
        )  # fmt: skip
        self._events.emit("memory", reason=why)
