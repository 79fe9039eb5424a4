"""Deals the items of logical streams out to the replica groups, one stream for each slot of a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp

from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.stream_state import StreamState
from torchft_x.core.fingerprint import ORDER
from torchft_x.errors import ConfigError, StepError, TransferError
from torchft_x.transfer.packed import pack, unpack

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

log = logging.getLogger(__name__)
Opened = Callable[[int, int], Any]
"""Function of (stream, epoch) that returns an iterable, such as a StatefulDataLoader."""


class ElasticStreams:
    """Deals the items of streams out to the groups, so that each item of each stream is committed exactly once.

    ::

        def open_stream(stream, epoch):
            return StatefulDataLoader(Shard(stream, 64, epoch), batch_size=8)

        data = ElasticStreams(manager, open_stream, streams=64)
        while manager.current_step() < steps:
            optimizer.zero_grad()
            for batch in data.step():
                loss_fn(ddp(batch)).backward()
            optimizer.step()

    A step takes one item of each stream, for any number of groups. A group computes its share of them one after the other.
    The gradient is the mean over the items. A stream that ends is opened again, in its next epoch. A group that takes over a
    stream loads its newest snapshot and skips at most `every` items, if the stream has ``state_dict`` and
    ``load_state_dict``. Streams without state are skipped from the start of their epoch. Every `every` steps the groups exchange snapshots.

    Args:
        manager: this rank's Manager. One loader or sampler for each Manager, made before the first step.
        open_stream: returns an iterable for (stream, epoch). It must yield the same items each time.
        streams: number of streams: the slots of a step.
        policy: "constant": if a group is lost inside a step, its streams stay where they are. "strict": the step is computed
            again with all streams (`ElasticSampler`).
        every: steps between two exchanges of snapshots.
        weight: this group's weight in the sharing of streams.

    Raises:
        ConfigError: bad numbers, or a second loader.
    """

    def __init__(
        self,
        manager: Manager,
        open_stream: Opened,
        *,
        streams: int,
        policy: str = "constant",
        every: int = 100,
        weight: int = 1,
    ) -> None:
        if policy not in (Policy.CONSTANT.value, Policy.STRICT.value):
            raise ConfigError(f"policy is {policy!r}; for streams choose 'constant' or 'strict'.")
        if min(streams, every, weight) < 1:
            raise ConfigError(f"streams {streams}, every {every}, weight {weight}: each is at least 1.")
        self._manager = manager
        self._open_stream = open_stream
        self._every = every
        self._streams: dict[int, _Stream] = {}  # streams that this group has read
        self._snapshots: dict[int, tuple[int, bytes]] = {}  # by stream: number of items before it, and the packed state
        self._next: dict[
            int, tuple[int, Any]
        ] = {}  # by stream: number and content of the newest item, until it is committed
        options = DataOptions(Policy(policy), streams, batch=1, weight=weight)
        manager.steps.data.use(StreamState((0,) * streams), options)
        manager.declare(ORDER, f"{streams} streams", [f"policy {policy}", f"snapshots every {every} steps"])

    def step(self) -> Iterator[Any]:
        """Yield the items of the step that ``zero_grad()`` has started.

        A group that contributes nothing (it heals, is a spare, or there are fewer streams than groups) gets an item that does
        not count. Raises the errors of `Manager.wait_quorum` and of the streams, and `StepError` before the first step.
        """
        data = self._manager.steps.data
        dealt = data.deal()
        if dealt is None or not dealt.slots:
            data.slot = None
            yield self._item(0, self._next[0][0] if 0 in self._next else 0)
            return
        position = dealt.data
        assert isinstance(position, StreamState), "set by this class"
        self._exchange(position, dealt.slots)
        slots = dealt.slots
        for slot, next_slot in zip(slots, [*slots[1:], None], strict=True):
            data.begin(dealt, slot, next_slot)
            yield self._item(slot, position.counts[slot])

    def _item(self, stream: int, number: int) -> Any:
        """Return an item of a stream. An item is read once, and kept until the next one is wanted."""
        kept = self._next.get(stream)
        if kept is not None and kept[0] == number:
            return kept[1]
        opened = self._streams.get(stream)
        if opened is None or opened.number > number:
            opened = self._streams[stream] = self._reopen(stream, number)
        while opened.number < number:
            opened.take()
        item = opened.take()
        self._next[stream] = (number, item)
        return item

    def _reopen(self, stream: int, number: int) -> _Stream:
        known = self._snapshots.get(stream)
        opened = _Stream(self._open_stream, stream)
        if known is not None and known[0] <= number:
            opened.load(known[0], unpack(known[1]))
        if number - opened.number > self._every:
            log.warning("stream %s: %s items are read again to reach item %s", stream, number - opened.number, number)
        return opened

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def _exchange(self, position: StreamState, own: list[int]) -> None:
        """Give the other groups this group's snapshots, and take theirs, if it is time."""
        step, role = self._manager.context.step.top.step, self._manager.steps.role
        if step % self._every or not step or role is None or role.part.size < 2:
            return
        for stream in own:
            opened = self._streams.get(stream)
            if opened is not None and opened.number == position.counts[stream]:
                state = opened.state()
                if state is not None:
                    self._snapshots[stream] = (opened.number, pack(state))
        mine = {stream: self._snapshots[stream] for stream in own if stream in self._snapshots}
        width = torch.tensor([max((len(data) for _, data in mine.values()), default=0)])
        if self._manager.allreduce(width, reduce_op=ReduceOp.MAX).wait() is False or not width.item():
            return
        table = torch.zeros(len(position.counts), int(width.item()) + 16, dtype=torch.uint8)
        for stream, (number, data) in mine.items():
            row = number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data
            table[stream, : len(row)] = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        if self._manager.allreduce(table, reduce_op=ReduceOp.SUM).wait() is False:
            return
        for stream, line in enumerate(table):
            row = bytes(line.tolist())
            number, size = int.from_bytes(row[:8], "little"), int.from_bytes(row[8:16], "little")
            if size and number >= self._snapshots.get(stream, (0, b""))[0]:
                self._snapshots[stream] = (number, row[16 : 16 + size])


class _Stream:
    """One stream, and the number of items taken from it in all epochs."""

    def __init__(self, open_stream: Opened, stream: int) -> None:
        self.number = 0
        self._open_stream = open_stream
        self._stream = stream
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._source = self._open_stream(self._stream, epoch)
        self._items: Iterator[Any] | None = None  # made at the first item, after a state was loaded

    def take(self) -> Any:
        """Return the next item, of the next epoch if this one has ended. Raises `StepError` for a stream without items."""
        for attempt in range(2):
            if self._items is None:
                self._items = iter(self._source)
            try:
                item = next(self._items)
            except StopIteration:
                if attempt:
                    break
                self._begin(self._epoch + 1)
                continue
            self.number += 1
            return item
        raise StepError(f"stream {self._stream} has no items in epoch {self._epoch}.")

    def state(self) -> Any:
        """Return the state after the items taken so far; None if the stream has none."""
        save = getattr(self._source, "state_dict", None)
        return None if save is None else {"epoch": self._epoch, "source": save()}

    def load(self, number: int, state: Any) -> None:
        """Go to the item with this number, at which `state` was saved. Raises `TransferError` if it is no such state."""
        if not isinstance(state, dict) or set(state) != {"epoch", "source"} or type(state["epoch"]) is not int:
            raise TransferError(f"the snapshot of stream {self._stream} is not one of ElasticStreams.")
        self._begin(state["epoch"])
        self._source.load_state_dict(state["source"])
        self.number = number
