"""A state from several sources: they share it, and one that dies, stands still, lies or changes its mind is replaced."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.torch.transfer.conformance import WAIT
from tests.torch.transfer.http.test_transport import HTTP, Make, Proxy, made, make  # noqa: F401
from tests.torch.transfer.http.test_transport import destination as healer  # noqa: F401
from tests.torch.transfer.states import same
from tests.util import wait_for
from torchft_x.errors import TransferError
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.http import fetch, transport
from torchft_x.transfer.http.client import Source

SIZE = 8 << 20  # elements; 32 blocks
State = dict[str, torch.Tensor]


def state(value: float = 1.0) -> State:
    return {"a": torch.arange(SIZE, dtype=torch.float32) * value, "small": torch.full((5,), float(value))}


class Carriers:
    """Some sources of one state, each behind a relay under the test's control."""

    def __init__(self) -> None:
        self.made: list[HTTP] = []
        self.relays: list[Proxy] = []
        self.sent: list[int] = []  # bytes that have come out of each relay
        self.over = threading.Event()  # the test is: whoever stands still goes on

    def add(
        self, offered: Any, change: Callable[[int, int, bytes], bytes | None] = lambda number, offset, chunk: chunk
    ) -> HTTP:
        index = len(self.made)
        source = make()
        source.send_checkpoint([1], 1, offered, WAIT)

        def count(number: int, offset: int, chunk: bytes) -> bytes | None:
            out = change(number, offset, chunk)
            self.sent[index] += len(out or b"")
            return out

        self.sent.append(0)
        self.made.append(source)
        self.relays.append(Proxy(source.metadata(), count))
        return source

    def addresses(self) -> tuple[str, list[Callable[[], str]]]:
        """The first source, and the others."""
        metadata = [relay.metadata for relay in self.relays]
        return metadata[0], [lambda m=m: m for m in metadata[1:]]  # type: ignore[misc]

    def close(self) -> None:
        self.over.set()
        for relay in self.relays:
            relay.close()
        for source in self.made:
            source.shutdown(wait=False)


@pytest.fixture
def carriers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Carriers]:
    monkeypatch.setattr(transport, "STRIPED_BYTES", 0)
    made = Carriers()
    yield made
    made.close()


def receive(healer: HTTP, carriers: Carriers, into: Any = None) -> Any:
    first, mirrors = carriers.addresses()
    return healer.recv_checkpoint(0, first, 1, WAIT, into=into, mirrors=mirrors)


def heal(healer: HTTP, carriers: Carriers) -> None:
    into = state(0)
    receive(healer, carriers, into)
    assert same(into, state())


def sends_until(carriers: Carriers, wanted: Callable[[], bool], after: int = 2 * BLOCK_BYTES) -> Any:
    """What a relay does that hands on `after` bytes of each connection, and the rest when `wanted`, or when the test ends."""

    def change(number: int, offset: int, chunk: bytes) -> bytes | None:
        if offset >= after:
            wait_for(lambda: wanted() or carriers.over.is_set(), WAIT, "what the relay waits for")
        return None if carriers.over.is_set() else chunk

    return change


def test_sources_share_the_work(carriers: Carriers, healer: HTTP) -> None:
    """The first one goes on only when the other has sent some blocks, so that must have been given them."""
    carriers.add(state(), sends_until(carriers, lambda: carriers.sent[1] > 3 * BLOCK_BYTES))
    carriers.add(state())
    into = state(0)
    result = receive(healer, carriers, into)
    assert same(into, state())
    assert result["a"] is into["a"]
    assert min(carriers.sent) > 2 * BLOCK_BYTES


def test_a_source_that_dies_in_the_middle_is_replaced(carriers: Carriers, healer: HTTP) -> None:
    died = threading.Event()  # the listener goes with it: nobody is there for those who connect again

    def die(number: int, offset: int, chunk: bytes) -> bytes | None:
        if offset < 3 * BLOCK_BYTES and not died.is_set():
            return chunk
        died.set()
        carriers.relays[0].listener.close()
        return None

    carriers.add(state(), die)
    carriers.add(state())
    heal(healer, carriers)
    assert died.is_set()


@pytest.mark.parametrize("which", [0, 1])
def test_nobody_waits_for_one_that_stands_still(
    carriers: Carriers, healer: HTTP, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(2):
        if index == which:
            carriers.add(state(), sends_until(carriers, lambda: False))
        else:  # so that the other one is asked for something before all has come
            carriers.add(state(), sends_until(carriers, lambda: carriers.sent[which] > 2 * BLOCK_BYTES))
    with caplog.at_level(logging.INFO):
        assert same(receive(healer, carriers), state())
    assert "far slower than the other sources" in caplog.text


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (state(2), r"differs from that of the other sources in block \d+, which holds a"),
        ({"b": torch.zeros(SIZE)}, "other values or another layout"),
    ],
    ids=["bytes", "layout"],
)
def test_one_with_another_state_is_not_mixed_in(
    carriers: Carriers, healer: HTTP, other: Any, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    dropped = threading.Event()
    drop = fetch.Fetch._drop

    def dropping(self: fetch.Fetch, source: Any, error: BaseException) -> None:
        drop(self, source, error)
        dropped.set()

    monkeypatch.setattr(fetch.Fetch, "_drop", dropping)
    carriers.add(state(), sends_until(carriers, dropped.is_set))
    carriers.add(other)
    with caplog.at_level(logging.INFO):
        heal(healer, carriers)
    assert re.search(why, caplog.text)


def test_the_first_source_is_the_one_that_is_right(
    carriers: Carriers, healer: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it takes its time to say which digests it has."""
    said = threading.Event()
    digests = Source.digests

    def late(self: Source, blocks: int) -> tuple[int, ...]:
        if self.address.port == carriers.relays[0].listener.getsockname()[1]:
            said.wait(0.3)
        values = digests(self, blocks)
        said.set()
        return values

    monkeypatch.setattr(Source, "digests", late)
    monkeypatch.setattr(fetch, "COMPARE", WAIT)
    carriers.add(state(), sends_until(carriers, said.is_set, BLOCK_BYTES // 2))
    carriers.add(state(2))
    assert same(receive(healer, carriers), state())


def test_where_the_first_one_does_not_say_its_digests_what_it_has_sent_counts(
    carriers: Carriers, healer: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = Source.digests
    compared = threading.Event()

    def none_of_the_first(self: Source, blocks: int) -> tuple[int, ...]:
        if self.address.port == carriers.relays[0].listener.getsockname()[1]:
            raise TransferError("it does not say")
        wait_for(lambda: carriers.sent[0] >= 6 * BLOCK_BYTES, WAIT, "what the first one sends")
        values = digests(self, blocks)
        compared.set()
        return values

    monkeypatch.setattr(Source, "digests", none_of_the_first)
    carriers.add(state(), sends_until(carriers, compared.is_set, 3 * BLOCK_BYTES))
    carriers.add(state(2))
    heal(healer, carriers)
    assert carriers.sent[1] < BLOCK_BYTES  # not one block


def test_a_damaged_block_is_fetched_from_another_one(carriers: Carriers, healer: HTTP) -> None:
    damaged = threading.Event()

    def damage(number: int, offset: int, chunk: bytes) -> bytes:
        if offset < BLOCK_BYTES:
            return chunk
        damaged.set()
        return bytes([chunk[0] ^ 1]) + chunk[1:]

    carriers.add(state(), sends_until(carriers, damaged.is_set))
    carriers.add(state(), damage)
    heal(healer, carriers)


@pytest.mark.parametrize("which", [0, 1])
def test_a_source_that_changes_its_mind_is_replaced(carriers: Carriers, healer: HTTP, which: int) -> None:
    """It takes the snapshot back in the middle, for newer ones."""
    changed = threading.Event()

    def change(number: int, offset: int, chunk: bytes) -> bytes | None:
        if offset >= BLOCK_BYTES and not changed.is_set():
            for snapshot in list(carriers.made[which]._store._alive):
                snapshot.revoked = True
                carriers.made[which]._store._alive.remove(snapshot)
            changed.set()
        return chunk

    for index in range(2):
        carriers.add(state(), change if index == which else sends_until(carriers, changed.is_set))
    heal(healer, carriers)


def test_the_error_of_the_first_one_ends_it_when_none_is_left(carriers: Carriers, healer: HTTP) -> None:
    def damage(number: int, offset: int, chunk: bytes) -> bytes:
        return bytes([chunk[0] ^ 1]) + chunk[1:] if offset >= BLOCK_BYTES else chunk

    carriers.add(state(), damage)
    carriers.add(state(), damage)
    with pytest.raises(TransferError, match=r"digest of block \d+ is wrong") as caught:
        receive(healer, carriers, state(0))
    assert caught.value.torn


def test_who_offers_nothing_is_not_waited_for(carriers: Carriers, healer: HTTP) -> None:
    """Neither when all is there, nor, for long, when nobody else is left."""
    carriers.add(state())
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts nothing and says nothing
        metadata = f"http://127.0.0.1:{silent.getsockname()[1]}/checkpoint/"
        first, _ = carriers.addresses()
        assert same(healer.recv_checkpoint(0, first, 1, 1e6, mirrors=[lambda: metadata]), state())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch, "ANSWER", 0.2)
            carriers.relays[0].change = lambda number, offset, chunk: None if offset > BLOCK_BYTES else chunk
            carriers.relays[0].listener.close()
            with pytest.raises(TransferError):
                healer.recv_checkpoint(0, first, 1, 1e6, mirrors=[lambda: metadata])


def test_further_sources_are_asked_only_where_it_pays(
    carriers: Carriers, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a small state, and not if it can be copied from memory."""
    asked: list[str] = []

    def locate() -> str:
        asked.append("")
        raise TransferError("asked")

    carriers.add(state())
    first, _ = carriers.addresses()
    for least, shared in ((1 << 40, False), (0, True)):
        monkeypatch.setattr(transport, "STRIPED_BYTES", least)
        healer = made(shared_memory=shared)
        assert same(healer.recv_checkpoint(0, first, 1, WAIT, mirrors=[locate]), state())
    assert asked == []


def test_one_that_refuses_the_token_is_left_out(carriers: Carriers, made: Make, healer: HTTP) -> None:
    carriers.add(state())
    first, _ = carriers.addresses()
    assert same(healer.recv_checkpoint(0, first, 1, WAIT, mirrors=[made(token="other").metadata]), state())


def test_nothing_stays_behind(carriers: Carriers, healer: HTTP) -> None:
    for _ in range(3):
        carriers.add(state())
    before = set(threading.enumerate())
    receive(healer, carriers)

    def names() -> list[str]:
        new = set(threading.enumerate()) - before
        return [t.name for t in new if t.name in ("checkpoint-fetch", "checkpoint-reader")]

    wait_for(lambda: not names(), 30, "the threads of both sides to end")


def test_a_connect_that_hangs_holds_nobody_up(
    carriers: Carriers, healer: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a source whose host is lost: its streams wait for a connect when all has come from another one."""
    lost, hangs = threading.Event(), threading.Event()
    connect = Source.connect

    def hang(self: Source) -> Any:
        if lost.is_set() and self.address.port == carriers.relays[0].listener.getsockname()[1]:
            hangs.set()
            carriers.over.wait(WAIT)
        return connect(self)

    def lose(number: int, offset: int, chunk: bytes) -> bytes | None:
        if offset < BLOCK_BYTES:
            return chunk
        lost.set()
        return None

    monkeypatch.setattr(Source, "connect", hang)
    monkeypatch.setattr(fetch, "COMPARE", 0.2)
    carriers.add(state(), lose)
    carriers.add(state())
    assert same(receive(healer, carriers), state())
    assert hangs.is_set()
    assert not carriers.over.is_set()
