"""Between processes of one host a state is copied from memory; whatever stands against it, it is fetched by streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.transfer.conformance import WAIT
from tests.torch.transfer.http.test_transport import HTTP, Make, Proxy, RawReader, big, made, make, source  # noqa: F401
from tests.torch.transfer.states import same
from tests.util import wait_for
from torchft_x.core.types import State
from torchft_x.descriptors import shut
from torchft_x.errors import TransferError
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.transfer.http import memory_copy
from torchft_x.transfer.memory_slots import MemorySlot
from torchft_x.transfer.shared_memory import Buffer, SharedFile, allocate_buffer

STATE_BYTES = big(0)["a"].nbytes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")


@pytest.fixture
def destination(made: Make) -> HTTP:
    return made()


class Counter(Proxy):
    """A relay that counts what a source sends, and cuts the first connection behind its first `limit` bytes."""

    def __init__(self, source: HTTP, limit: int = 1 << 40) -> None:
        self.sent = 0
        self.limit = limit
        super().__init__(source.metadata(), self._count)

    def _count(self, number: int, offset: int, chunk: bytes) -> bytes | None:
        self.sent += len(chunk)
        return chunk if number > 0 or offset + len(chunk) <= self.limit else None


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_in_memory_is_not_sent(source: HTTP, destination: HTTP, in_place: bool) -> None:
    relay = Counter(source)
    source.send_checkpoint([1], 1, big(3), WAIT)
    into = big(0) if in_place else None
    result = destination.recv_checkpoint(0, relay.metadata, 1, WAIT, into=into)
    assert same(result, big(3))
    assert relay.sent < 10_000
    relay.close()


@pytest.mark.parametrize(("offers", "takes"), [(False, True), (True, False)])
def test_either_side_can_do_without(made: Make, offers: bool, takes: bool) -> None:
    source, destination = made(shared_memory=offers), made(shared_memory=takes)
    relay = Counter(source)
    source.send_checkpoint([1], 1, big(3), WAIT)
    assert same(destination.recv_checkpoint(0, relay.metadata, 1, WAIT), big(3))
    assert relay.sent > STATE_BYTES
    relay.close()


def test_a_system_without_memory_files_sends(source: HTTP, destination: HTTP, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError("not in this sandbox")

    monkeypatch.setattr(os, "memfd_create", refuse)
    source.send_checkpoint([1], 1, big(3), WAIT)
    assert same(destination.recv_checkpoint(0, source.metadata(), 1, WAIT), big(3))


def test_who_has_no_token_learns_no_name(source: HTTP) -> None:
    source.send_checkpoint([1], 1, big(3), WAIT)
    assert RawReader(source, 1, token="wrong").manifest.headers["X-Memory"] is None
    assert RawReader(source, 1).manifest.headers["X-Memory"].startswith(f"{os.getpid()}/")


def test_what_nobody_confirms_is_fetched_again(source: HTTP, destination: HTTP) -> None:
    """The connection that held the snapshot breaks before it has said that it still does."""
    source.send_checkpoint([1], 1, big(3), WAIT)
    manifest = RawReader(source, 1).manifest
    head = len(str(manifest.headers)) + len("HTTP/1.1 200 OK\r\n") + int(manifest.headers["Content-Length"])
    relay = Counter(source, limit=head + 50)
    assert same(destination.recv_checkpoint(0, relay.metadata, 1, WAIT), big(3))
    assert relay.count > 1
    assert relay.sent > STATE_BYTES
    relay.close()


def test_memory_that_was_used_again_is_never_taken_for_the_state(
    source: HTTP, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is cut off in the middle, and the source freezes the next states into the memory that it reads."""
    relay = Counter(source)
    source.send_checkpoint([1], 1, big(1), WAIT)
    memory = source._store._current
    assert memory is not None
    read, reads = SharedFile.read, []

    def slow_read(self: SharedFile, target: memoryview, start: int) -> None:
        reads.append(start)
        if len(reads) == 3:
            for s in relay.sockets:
                shut(s)
            wait_for(lambda: memory.readers == 0, what="the source notices")
            for step in (2, 3):
                source.disallow_checkpoint()
                source.send_checkpoint([1], step, big(step), WAIT)
        read(self, target, start)

    monkeypatch.setattr(SharedFile, "read", slow_read)
    destination = made(1)
    into = big(0)
    with pytest.raises(TransferError, match="this snapshot is gone") as caught:
        destination.recv_checkpoint(0, relay.metadata, 1, WAIT, into=into)
    assert caught.value.torn
    assert float(into["a"].max()) > 1  # without the question at the end this would have been a state of step 1
    relay.close()


def test_the_source_sees_whether_a_copy_moves(source: HTTP, made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each block there is a sign, for one that takes long no second one."""
    read, signs = SharedFile.read, []

    def slow_read(self: SharedFile, target: memoryview, start: int) -> None:
        before = signs[-1] if signs else 1  # the request for the manifest is the first, the answer taken the second
        wait_for(lambda: source.progress()[0] > before, what="a sign of the block before")
        signs.append(source.progress()[0])
        if len(signs) == 3:
            threading.Event().wait(0.1)
            assert source.progress()[0] == signs[-1]
        read(self, target, start)

    monkeypatch.setattr(memory_copy, "CONFIRM_EVERY", 0.005)
    monkeypatch.setattr(SharedFile, "read", slow_read)
    source.send_checkpoint([1], 1, big(3), WAIT)
    destination = made(1)
    assert same(destination.recv_checkpoint(0, source.metadata(), 1, WAIT), big(3))
    assert len(signs) > 10
    wait_for(lambda: source.progress()[1], what="the reader to be done")


def test_nothing_else_is_opened_or_read(tmp_path: Path) -> None:
    buffer = allocate_buffer(1000)
    assert buffer.name is not None
    pid, fd, tag = buffer.name.split("/")
    file = SharedFile.open(buffer.name, 1000)
    assert file is not None
    with pytest.raises(OSError, match="shorter"):
        file.read(memoryview(bytearray(2000)), 0)
    file.close()
    assert SharedFile.open(buffer.name, 5000) is None
    (tmp_path / "secret").write_bytes(bytes(2000))
    other = os.memfd_create("other")
    os.ftruncate(other, 2000)
    reader, writer = os.pipe()
    with (tmp_path / "secret").open("rb") as f:
        for wrong in (f.fileno(), other, reader, 10**9):
            assert SharedFile.open(f"{pid}/{wrong}/{tag}", 1000) is None
    for name in ("", f"{pid}/{fd}/{'0' * 32}", f"self/{fd}/{tag}", f"{pid}/../{tag}", f"1/{fd}/{tag}", "9" * 5000):
        assert SharedFile.open(name, 1000) is None
    for each in (other, reader, writer):
        os.close(each)


def test_memory_and_descriptors_go(destination: HTTP) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    source = make()
    source.send_checkpoint([1], 1, big(3), WAIT)
    result = destination.recv_checkpoint(0, source.metadata(), 1, WAIT)
    source.shutdown()
    del source
    wait_for(lambda: descriptors() <= before, what="descriptors")
    assert same(result, big(3))


def test_a_state_larger_than_the_machine_is_refused_not_killed() -> None:
    with pytest.raises(RuntimeError):
        allocate_buffer(1 << 60)


@pytest.mark.gpu(1)
def test_accelerators_get_pinned_memory() -> None:
    assert allocate_buffer(1000, pinned=True).name is None


class Holder:
    """Lends the memory of one slot, with room for `big` and more, once at a time."""

    def __init__(self) -> None:
        self.memory = CheckpointMemory(1)
        slot = MemorySlot.open(self.memory.names[0][0], 64 << 20)
        assert slot is not None
        self.slot = slot
        self.slot.grow(self.slot.room_for(big(0)))
        assert self.slot.write(State(7), big(7))
        self.slot.seal()
        self.returned: Callable[[], bool] = lambda: True

    def lends(self, nbytes: int) -> bool:
        return self.slot.may_take(nbytes)

    def lend(self, nbytes: int, returned: Callable[[], bool]) -> Buffer | None:
        if not self.returned():
            return None
        buffer = self.slot.lend(nbytes)
        if buffer is not None:
            self.returned = returned
        return buffer


@pytest.fixture
def holder(source: HTTP) -> Iterator[Holder]:
    holder = Holder()
    source.borrow_from(holder)
    yield holder
    holder.slot.close()
    holder.memory.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_state_is_offered_in_memory_that_is_lent(source: HTTP, made: Make, holder: Holder, shared: bool) -> None:
    destination = made(shared_memory=shared)
    relay = Counter(source)
    source.prepare(big(3))
    source.send_checkpoint([1], 1, big(3), WAIT)
    snapshot = source._store._current
    assert snapshot is not None
    assert snapshot.memory.lent
    assert source._store._spare == []  # none of its own
    assert holder.slot.state is None
    assert same(destination.recv_checkpoint(0, relay.metadata, 1, WAIT), big(3))
    assert (relay.sent < 10_000) is shared
    relay.close()


def test_lent_memory_is_back_when_nobody_reads_it_any_more(
    source: HTTP, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchft_x.transfer.snapshot.CUT_GRACE", 0.0)
    source.send_checkpoint([1], 1, big(1), WAIT)
    assert not holder.returned()  # somebody may still ask
    reader = RawReader(source, 1)
    source.disallow_checkpoint()
    assert not holder.returned()  # it is being read
    source.send_checkpoint([1], 2, big(2), WAIT)  # and there is no more of it
    assert source._store._current is not None
    assert not source._store._current.memory.lent
    reader.connection.close()
    wait_for(holder.returned, what="the end of the reader")
    assert holder.slot.write(State(9), big(9))
    holder.slot.seal()
    source.send_checkpoint([1], 3, big(3), WAIT)
    assert source._store._current.memory.lent
    source.disallow_checkpoint()
    assert holder.returned()  # who was promised it has not come in time
    source.send_checkpoint([1], 4, {"w": torch.zeros(32 << 20)}, WAIT)  # more than there is
    assert not source._store._current.memory.lent


def test_who_comes_late_for_a_promised_state_gets_it_from_lent_memory(
    source: HTTP, destination: HTTP, holder: Holder
) -> None:
    source.send_checkpoint([1], 1, big(1), WAIT)
    source.disallow_checkpoint()
    assert not holder.returned()
    assert same(destination.recv_checkpoint(0, source.metadata(), 1, WAIT), big(1))
    for snapshot in source._store._alive:
        snapshot.held_until = 0.0  # as if the grace were over
    wait_for(holder.returned, what="the end of the reader")
