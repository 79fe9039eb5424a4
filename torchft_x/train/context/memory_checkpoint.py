"""Copies of this rank's state in the memory of its supervisor, made now and then, and what a life begins with.

When, where and which is said in `core.training.memory_checkpoint`, how they look in `transfer.memory_slots`. The training thread
copies, between two steps, as the state is that of one step only there. What needs the copy and not the state (the digests, more
memory) is done beside the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from torchft_x.core.training.memory_checkpoint import NOTHING, CopySchedule, GroupWord, HeldCopies, RankWord
from torchft_x.core.types import State
from torchft_x.errors import TorchftXError, TransferError
from torchft_x.observe.events import EventLog
from torchft_x.train.setup.connect import GroupConnection
from torchft_x.train.setup.options import Options
from torchft_x.transfer.memory_slots import MemorySlot
from torchft_x.transfer.shared_memory import Buffer

_END = 10.0  # seconds that a copy under way may take when the script ends
_SEALED = 0.5  # seconds that one may take when its slot's memory is wanted

_lock = threading.Lock()  # guards the next one
_taken: set[str] = set()  # slots that a Manager of this process has had


def open_slots(options: Options) -> list[MemorySlot]:
    """This rank's; empty if it has none. The first Manager of a process gets them."""
    limit, *ranks = options.memory_slots.split(";")
    names = ranks[options.local_rank].split(",") if 0 <= options.local_rank < len(ranks) and limit.isdigit() else []
    with _lock:
        free = [name for name in names if name not in _taken]
        _taken.update(free)
    slots = [slot for name in free if (slot := MemorySlot.open(name, int(limit))) is not None]
    return slots if len(slots) > 1 else []


class MemoryCheckpoint:
    """Of one rank. Used by the training thread.

    Args:
        connection: to the other ranks of the group, who do the same.
        step: where this rank stands, and whether it does so wholly.
    """

    def __init__(
        self, options: Options, connection: GroupConnection, events: EventLog, log: logging.LoggerAdapter[Any]
    ) -> None:
        self._events = events
        self._log = log
        self._slots = open_slots(options)  # two, or none
        self._holds = [slot.state for slot in self._slots]  # what is complete in each
        self._copies = HeldCopies(connection.newest_copy([s for s in self._holds if s is not None]))
        self._schedule = CopySchedule()  # rank 0 counts
        self._worker: threading.Thread | None = None  # beside the training, while there is something to do
        self._off = "" if self._slots else "there is no memory for it"  # why nothing is copied (any more)
        self._describe: Callable[[], dict[str, Any]] | None = None  # see `describe_with`
        self._noted: tuple[State, dict[str, Any], float] | None = None  # of which state, what, and the seconds it took
        self.apart = False
        """This group trains apart: only who exchanges knows when its state is one that others can go on from."""
        self._said = False  # rank 0 was told that the last copy is here, and may have made it the group's
        self._returned: Callable[[], bool] | None = None  # a slot's memory is lent: whether that is over

    def __repr__(self) -> str:
        return f"<MemoryCheckpoint {self._off or self._copies}>"

    # --- with each vote ------------------------------------------------------------------------------------------------

    def word(self, *, torn: bool, behind: bool) -> RankWord:
        """What this rank's vote says. No copy is ordered before the one under way has its seal."""
        idle = not self._off and self._none_is_lent() and (self._worker is None or not self._worker.is_alive())
        word = self._copies.word(self._holds, idle=idle, torn=torn, behind=behind)
        self._said = word.holds
        return word

    def decide(self, words: Collection[RankWord], step: int | None, step_seconds: float) -> GroupWord:
        """What rank 0 says. `step`: what the commit leads to; None: nothing is committed."""
        due = step is not None and self._schedule.due(step, step_seconds)
        return self._copies.decide(words, due=due, commit=step is not None)

    def hear(self, word: GroupWord, state: State | None) -> None:
        """What rank 0 has said. `state`: what the commit leads to; None: nothing is committed."""
        self._said = False
        if word == NOTHING and self._copies.common is None:
            return  # the common case where nothing is held
        self._copies.hear(word, state)
        for i, held in enumerate(self._holds):
            if state is not None and held is not None and held > state:  # of a history that has ended
                self._slots[i].erase()
                self._holds[i] = None

    # --- between two steps ---------------------------------------------------------------------------------------------

    def describe_with(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Copies shall hold what this returns, too, and that first: what a durable checkpoint of the state is, in the state's own
        tensors (`transfer.from_memory.held`)."""
        self._describe = describe

    def note(self, state: State) -> None:
        """The script stands where it would save `state` durably. If a copy of it is to come, describe it now: until the next
        step begins the script may draw a batch, which is not part of that state."""
        if self._describe is not None and self._copies.wanted == state and not self._off:
            began = time.monotonic()
            self._noted = (state, self._describe(), time.monotonic() - began)

    def maybe_copy(self, state: State, full_state: Callable[[], Any]) -> None:
        """A step begins, and this rank holds `state` wholly. Copy it, if that was said. Never raises."""
        wanted, self._copies.wanted = self._copies.wanted, None
        if wanted is None or wanted != state or self._off or not self._none_is_lent():
            return
        noted, began = self._noted, time.monotonic()
        index = self._copies.slot(self._holds)
        try:
            values = self._values(state, full_state)
            if not self._write(index, state, values):
                self._begin(self._grow, self._missing(values))
                return
        except (TorchftXError, RuntimeError, OSError) as e:
            self._stop(str(e))
            return
        if noted is not None and noted[0] == state:
            began -= noted[2]
        self._begin(self._seal, index, state, time.monotonic() - began)

    def copy_last(self, state: State, full_state: Callable[[], Any]) -> None:
        """This rank leaves before the end of the training, and holds `state` wholly. Copy it: the group's next life goes on from
        there. Waits for the copy. Never raises."""
        if self._worker is not None:
            self._worker.join(_END)
        busy = self._worker is not None and self._worker.is_alive()
        if self._off or busy or state in self._holds or not self._none_is_lent():
            return
        index = self._copies.slot(self._holds)
        try:
            values = self._values(state, full_state)
            if not self._write(index, state, values):
                self._grow(self._missing(values))
                if self._off or not self._write(index, state, values):
                    return
        except (TorchftXError, RuntimeError, OSError) as e:
            self._stop(str(e))
            return
        self._seal(index, state, 0.0)

    def _values(self, state: State, full_state: Callable[[], Any]) -> dict[str, Any]:
        """Return what a copy of `state` holds."""
        noted, self._noted = self._noted, None
        values: dict[str, Any] = full_state()
        if noted is not None and noted[0] == state:
            return {**noted[1], **values}
        return values if self._describe is None else {**self._describe(), **values}

    def _write(self, index: int, state: State, values: dict[str, Any]) -> bool:
        """Write a copy, without its seal. Return False if its slot must grow first, and was not touched."""
        slot, self._holds[index] = self._slots[index], None
        try:
            written = slot.write(state, values)
        except BaseException:
            self._holds[index] = slot.state
            raise
        if not written:
            self._holds[index] = slot.state
        return written

    def _missing(self, values: dict[str, Any]) -> list[tuple[MemorySlot, int]]:
        """Return the bytes that each slot lacks for these values."""
        return [(slot, slot.room_for(values)) for slot in self._slots]

    def to_load(self, state: State) -> State | None:
        """See `HeldCopies.to_load`."""
        return self._copies.to_load(state)

    def read(self, state: State, into: Any) -> Any:
        """The copy of that state, in the tensors of `into` where they fit. Raises `TransferError`; then it is dropped."""
        slot = self._slots[self._holds.index(state)]
        try:
            return slot.read(into)
        except TransferError:
            self.drop()
            raise

    def drop(self) -> None:
        """Nobody can go on from these: the next life begins without them."""
        for i, slot in enumerate(self._slots):
            slot.erase()
            self._holds[i] = None

    def close(self) -> None:
        self._off = self._off or "the Manager was shut down"
        if self._worker is not None:
            self._worker.join(_END)
            if self._worker.is_alive():
                return  # it goes with the process
        for slot in self._slots:
            slot.close()
        self._slots, self._holds = [], []

    # --- lent to who offers the state to others -------------------------------------------------------------------------

    def lends(self, nbytes: int) -> bool:
        """Whether it usually has memory for so much."""
        return not self._off and all(slot.may_take(nbytes) for slot in self._slots)

    def lend(self, nbytes: int, returned: Callable[[], bool]) -> Buffer | None:
        """Memory of the slot that the next copy would go into; that waits until `returned` says True. The group's copy stays.
        None: there is none to spare."""
        if self._off or self._said or not self._none_is_lent():
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
