"""States through real gloo groups: threads where both sides can live in one process, processes where one is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.torch.comm.members import configure
from tests.torch.train.fakes import background
from tests.torch.transfer.states import same, training_state, zeroed
from tests.util import scaled
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.store.create import host_store
from torchft_x.errors import ConfigError, TransferError
from torchft_x.transfer import PGTransport
from torchft_x.transfer.format.limits import SMALL_BLOB_BYTES
from torchft_x.transfer.pg import PIECE_BYTES, cut

WAIT = scaled(20)
Make = Callable[[int], list[ProcessGroupGloo]]
Transports = list[PGTransport[Any]]


@pytest.fixture(scope="module")
def store() -> dist.TCPStore:
    return host_store("127.0.0.1", WAIT)[0]


@pytest.fixture(scope="module")
def make(store: dist.TCPStore) -> Iterator[Make]:
    made: list[ProcessGroupGloo] = []

    def groups(size: int) -> list[ProcessGroupGloo]:
        new = [ProcessGroupGloo(WAIT, host="127.0.0.1") for _ in range(size)]
        address = f"127.0.0.1:{store.port}/{len(made)}"
        configure(new, address, 1)
        made.extend(new)
        return new

    yield groups
    for group in made:
        group.shutdown()


@pytest.fixture(scope="module")
def transports(make: Make) -> Transports:
    return [PGTransport(group, WAIT, "cpu") for group in make(3)]


def carry(transports: Transports, state: Any, into: Any = None) -> Any:
    sent = background(lambda: transports[0].send_checkpoint([1], 5, state, committed_in=7))
    got = transports[1].recv_checkpoint(0, transports[0].metadata(), 5, committed_in=7, into=into)
    sent.result(WAIT)
    return got


def test_it_arrives_in_place(transports: Transports) -> None:
    state = training_state()
    into = zeroed(state)
    result = carry(transports, state, into)
    assert same(result, state)
    mine = into["user"]["default"]["model"]
    assert all(result["user"]["default"]["model"][name] is mine[name] for name in mine)


def test_in_place_of_what_the_constructor_was_told(make: Make) -> None:
    source, destination = make(2)
    mine = {"w": torch.zeros(300_000)}
    pair = [PGTransport[Any](source, WAIT, torch.device("cpu")), PGTransport(destination, WAIT, "cpu", lambda: mine)]
    assert carry(pair, {"w": torch.ones(300_000)})["w"] is mine["w"]
    assert mine["w"].min() == 1


def test_to_several_at_once(transports: Transports) -> None:
    state = {"big": torch.randn(3 * SMALL_BLOB_BYTES), "small": [torch.arange(5), torch.tensor(2.5)], "step": 3}
    got = [background(lambda rank=rank: transports[rank].recv_checkpoint(0, "", 1)) for rank in (1, 2)]
    transports[0].send_checkpoint([1, 2], 1, state)
    assert all(same(future.result(WAIT), state) for future in got)


def test_a_state_without_tensors_and_one_with_empty_ones(transports: Transports) -> None:
    assert carry(transports, {"step": 0}) == {"step": 0}
    state = {"none": torch.empty(0, 3), "w": torch.ones(2)}
    assert same(carry(transports, state), state)


@pytest.mark.parametrize(
    "t",
    [torch.arange(12.0).view(3, 4).t(), torch.arange(400_000.0)[::2], torch.ones(70_000).bfloat16(), torch.tensor([True, False])],
    ids=["transposed", "holes", "bfloat16", "bool"],
)  # fmt: skip
def test_strides_and_dtypes(transports: Transports, t: torch.Tensor) -> None:
    assert same(carry(transports, {"t": t}), {"t": t})
    into = {"t": torch.zeros(t.shape).to(t.dtype)}
    got = carry(transports, {"t": t}, into)
    assert got["t"] is into["t"]
    assert torch.equal(got["t"], t)


# -- what is refused --


def refused(transports: Transports, state: Any, into: Any, step: int = 5) -> tuple[TransferError, str]:
    """What the receiver says, and what the source hears. Both at once, and the group goes on."""
    start = time.monotonic()
    sent = background(lambda: transports[0].send_checkpoint([1], 5, state))
    with pytest.raises(TransferError) as caught:
        transports[1].recv_checkpoint(0, "", step, into=into)
    with pytest.raises(TransferError) as heard:
        sent.result(WAIT)
    assert time.monotonic() - start < WAIT / 2
    assert carry(transports, {"step": 1}) == {"step": 1}
    return caught.value, str(heard.value)


def test_another_step_is_refused_before_a_byte_is_written(transports: Transports) -> None:
    into = {"w": torch.zeros(300_000)}
    error, heard = refused(transports, {"w": torch.ones(300_000)}, into, step=6)
    assert "step 5" in str(error)
    assert not error.torn
    assert "Replica rank 1 refused the state of step 5" in heard
    assert into["w"].max() == 0


def test_one_refuses_and_the_others_are_served(transports: Transports) -> None:
    state = {"w": torch.ones(300_000)}
    good = background(lambda: transports[2].recv_checkpoint(0, "", 5))
    bad = background(lambda: transports[1].recv_checkpoint(0, "", 4))
    with pytest.raises(TransferError, match="rank 1 refused"):
        transports[0].send_checkpoint([1, 2], 5, state)
    assert same(good.result(WAIT), state)
    with pytest.raises(TransferError):
        bad.result(WAIT)


# -- deadlines and deaths --


def test_nobody_receives_and_nobody_sends(make: Make) -> None:
    for action in (
        lambda t: t.send_checkpoint([1], 5, {"w": torch.ones(3)}, 0.3),
        lambda t: t.recv_checkpoint(1, "", 5, timedelta(seconds=0.3)),
    ):
        group = make(2)[0]
        start = time.monotonic()
        with pytest.raises(TransferError, match="step 5"):
            action(PGTransport[Any](group, WAIT, "cpu"))
        assert time.monotonic() - start < WAIT / 2


def test_times_that_are_none(make: Make) -> None:
    group = make(1)[0]
    with pytest.raises(ConfigError, match="timeout"):
        PGTransport(group, -1.0, "cpu")
    with pytest.raises(ConfigError, match="timeout"):
        PGTransport[Any](group, 1.0, "cpu").recv_checkpoint(1, "", 1, 0)


def test_a_broken_byte_is_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = make(2)
    state = {"a": {"w": torch.ones(300_000)}}
    send = source.send

    def spoil(tensors: list[torch.Tensor], rank: int, tag: int = 0) -> dist.Work:
        if tensors[0].numel() == 1_200_000:
            tensors[0][77] += 1
        return send(tensors, rank, tag)

    monkeypatch.setattr(source, "send", spoil)
    pair = [PGTransport[Any](group, WAIT, "cpu") for group in (source, destination)]
    with pytest.raises(TransferError, match="digest of a/w is wrong") as caught:
        carry(pair, state, {"a": {"w": torch.zeros(300_000)}})
    assert caught.value.torn


# -- the cut --


@given(st.lists(st.integers(1, 3 * SMALL_BLOB_BYTES) | st.integers(1, 3 * PIECE_BYTES), max_size=40))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_byte_is_in_exactly_one_piece(sizes: list[int]) -> None:
    seen = dict.fromkeys(range(len(sizes)), 0)
    for message in cut(sizes):
        assert sum(piece.nbytes for piece in message) <= PIECE_BYTES
        assert [piece.block_offset for piece in message] == [
            sum(p.nbytes for p in message[:i]) for i in range(len(message))
        ]
        for piece in message:
            assert piece.blob_offset == seen[piece.blob], "in order, without gaps"
            seen[piece.blob] += piece.nbytes
    assert list(seen.values()) == sizes
