"""Deals the items of logical streams out to the replica groups, one stream for each slot of a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp

from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.state import StreamState
from torchft_x.core.fingerprint import ORDER
from torchft_x.errors import ConfigError, StepError, TransferError
from torchft_x.transfer.format.memory import memory_of
from torchft_x.transfer.packed import pack, unpack

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

log = logging.getLogger(__name__)
Opened = Callable[[int, int], Any]
"""Function of (stream, epoch) that returns an iterable, such as a StatefulDataLoader."""
Snapshots = dict[int, tuple[int, torch.Tensor]]
"""Number of items before the snapshot, and the packed state, by stream."""


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
    The gradient is the mean over the items. A stream that ends is opened again, in its next epoch.

    Every `every` steps the groups exchange snapshots of their streams, and a heal copies them. A group that takes over a
    stream loads its newest snapshot and skips at most `every` items, if the stream has ``state_dict`` and
    ``load_state_dict``. A stream without state is skipped from the start of its epoch. For checkpoints there are
    ``state_dict()`` and ``load_state_dict()``: without them a resumed job skips all items from the first epoch on.

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
        self._snapshots: Snapshots = {}  # the newest exchanged ones, by stream
        self._next: dict[int, tuple[int, Any]] = {}  # by stream: number and content of the newest item
        options = DataOptions(Policy(policy), streams, batch=1, weight=weight)
        manager.steps.data.use(StreamState((0,) * streams), options)
        manager.register_state_dict_fn("streams", self.load_state_dict, self.state_dict)
        manager.declare(ORDER, f"{streams} streams", [f"policy {policy}", f"snapshots every {every} steps"])

    def step(self) -> Iterator[Any]:
        """Yield the items of the step that ``zero_grad()`` has started.

        A group that contributes nothing (it heals, is a spare, or there are fewer streams than groups) gets an item that does
        not count. Raises the errors of `Manager.wait_quorum` and of the streams, and `StepError` before the first step.
        """
        data = self._manager.steps.data
        dealt = data.deal()
        counts: tuple[int, ...] = ()
        if dealt is not None:
            assert isinstance(dealt.data, StreamState), "set by this class"
            counts = dealt.data.counts
            self._exchange(dealt.data, dealt.slots)
        for slot in data.each_slot(dealt):
            if slot is None:
                yield self._item(0, self._next[0][0] if 0 in self._next else 0)
            else:
                yield self._item(slot, counts[slot])

    def _item(self, stream: int, number: int) -> Any:
        """Return an item of a stream. An item is read once, and kept until the next one is wanted."""
        kept = self._next.get(stream)
        if kept is not None and kept[0] == number:
            return kept[1]
        opened, (first, packed) = self._streams.get(stream), self._snapshots.get(stream, (0, None))
        if first > number:  # of a state that was lost
            first, packed = 0, None
        if opened is None or not first <= opened.number <= number:
            state = {"epoch": 0} if packed is None else unpack(bytes(memory_of(packed)))
            opened = self._streams[stream] = _Stream(self._open_stream, stream, first, state)
            if number - first > self._every:
                log.warning("stream %s: %s items are read again to reach item %s", stream, number - first, number)
        while opened.number < number:
            opened.take()
        item = opened.take()
        self._next[stream] = (number, item)
        return item

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshots that the groups have exchanged."""
        return {"snapshots": dict(self._snapshots)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore exchanged snapshots. The Manager restores the position."""
        self._snapshots = dict(state_dict["snapshots"])

    def _exchange(self, position: StreamState, own: list[int]) -> None:
        """Exchange snapshots, if it is time. All members of the quorum call it, also those without a stream of their own."""
        manager = self._manager
        step, role = manager.context.step.top.step, manager.steps.role
        if step % self._every or not step or role is None:
            return
        found: Snapshots = {}
        for stream in own:
            opened = self._streams.get(stream)
            if opened is not None and opened.number == position.counts[stream]:
                number, state = opened.state()
                found[stream] = number, torch.frombuffer(bytearray(pack(state)), dtype=torch.uint8)
        if role.part.size > 1:
            device = getattr(manager._pg, "takes", None)
            width = torch.tensor([max((len(data) for _, data in found.values()), default=0)], device=device)
            if manager.allreduce(width, reduce_op=ReduceOp.MAX).wait() is False or not width.item():
                return
            # A row has 16 bytes, the number of items and the snapshot's size, and the snapshot.
            table = torch.zeros(len(position.counts), 16 + int(width.item()), dtype=torch.uint8, device=device)
            for stream, (number, data) in found.items():
                head = torch.tensor([number, len(data)]).view(torch.uint8)
                table[stream, : 16 + len(data)] = torch.cat([head, data])
            if manager.allreduce(table, reduce_op=ReduceOp.SUM).wait() is False:
                return
            for stream, row in enumerate(table.cpu()):
                number, size = row[:16].clone().view(torch.int64).tolist()
                if size:
                    found[stream] = number, row[16 : 16 + size].clone()
        self._snapshots = self._snapshots | found


class _Stream:
    """One stream, and the number of items taken from it in all epochs. It begins at `number`, with the state saved there."""

    def __init__(self, open_stream: Opened, stream: int, number: int, state: Any) -> None:
        if not isinstance(state, dict) or type(state.get("epoch")) is not int:
            raise TransferError(f"the snapshot of stream {stream} is not one of ElasticStreams.")
        self.number = number
        self._open_stream = open_stream
        self._stream = stream
        self._begin(state["epoch"])
        if "source" in state:
            self._source.load_state_dict(state["source"])

    def _begin(self, epoch: int) -> None:
        self._epoch, self._first = epoch, self.number  # number of the epoch's first item, if the stream has no state
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

    def state(self) -> tuple[int, dict[str, Any]]:
        """Return the newest item at which the stream can begin again, and the state there."""
        save = getattr(self._source, "state_dict", None)
        if save is None:
            return self._first, {"epoch": self._epoch}
        return self.number, {"epoch": self._epoch, "source": save()}
