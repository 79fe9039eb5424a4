"""Conformance tests of transports. A test module subclasses `TransportConformance` and defines `pair`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from tests.torch.train.fakes import background
from tests.torch.transfer.states import same, training_state, zeroed
from tests.util import clock, scaled
from torchft_x.errors import ConfigError, LeafError, TransferError
from torchft_x.transfer import CheckpointTransport

Pair = tuple[CheckpointTransport[Any], CheckpointTransport[Any]]
WAIT = scaled(10)


class TransportConformance:
    """Tests for every transport.

    `pair`: a fixture that yields a source and a destination transport, and shuts both down.
    """

    def test_a_training_state_arrives_bit_exact(self, pair: Pair) -> None:
        source, destination = pair
        state = training_state()
        source.send_checkpoint([1], 5, state, WAIT, committed_in=7)
        assert same(destination.recv_checkpoint(0, source.metadata(), 5, WAIT, committed_in=7), state)

    def test_it_arrives_in_place(self, pair: Pair) -> None:
        source, destination = pair
        state = training_state()
        into = zeroed(state)
        source.send_checkpoint([1], 5, state, timedelta(seconds=WAIT))
        result = destination.recv_checkpoint(0, source.metadata(), 5, timedelta(seconds=WAIT), into=into)
        assert same(result, state)
        mine = into["user"]["default"]["model"]
        assert all(result["user"]["default"]["model"][name] is mine[name] for name in mine)

    def test_a_state_without_tensors(self, pair: Pair) -> None:
        source, destination = pair
        source.send_checkpoint([1], 0, {"step": 0}, WAIT)
        assert destination.recv_checkpoint(0, source.metadata(), 0, WAIT) == {"step": 0}

    def test_what_is_sent_is_frozen(self, pair: Pair) -> None:
        source, destination = pair
        state = {"w": torch.ones(100_000), "step": [1]}
        source.send_checkpoint([1], 1, state, WAIT)
        state["w"].zero_()
        state["step"].append(2)
        result = destination.recv_checkpoint(0, source.metadata(), 1, WAIT)
        assert result["w"].min() == 1
        assert result["step"] == [1]

    def test_a_request_before_the_state_exists_waits_for_it(self, pair: Pair) -> None:
        source, destination = pair
        got = background(lambda: destination.recv_checkpoint(0, source.metadata(), 3, WAIT, committed_in=2))
        source.send_checkpoint([1], 3, {"w": torch.ones(3)}, WAIT, committed_in=1)
        source.send_checkpoint([1], 3, {"w": torch.full((3,), 2.0)}, WAIT, committed_in=2)
        assert got.result(WAIT)["w"].tolist() == [2, 2, 2]

    def test_a_wrong_step_is_refused(self, pair: Pair) -> None:
        source, destination = pair
        source.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
        into = {"w": torch.zeros(3)}
        with pytest.raises(TransferError, match="step 5") as caught:
            destination.recv_checkpoint(0, source.metadata(), 4, WAIT, into=into)
        assert not caught.value.torn
        with pytest.raises(TransferError, match="step 5"):
            destination.recv_checkpoint(0, source.metadata(), 6, clock(1.5), into=into)
        assert into["w"].tolist() == [0, 0, 0]

    def test_disallow_keeps_new_readers_waiting(self, pair: Pair) -> None:
        source, destination = pair
        source.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
        destination.recv_checkpoint(0, source.metadata(), 5, WAIT)
        source.disallow_checkpoint()
        with pytest.raises(TransferError):
            destination.recv_checkpoint(0, source.metadata(), 5, 0.2)

    def test_a_leaf_that_cannot_be_sent_is_named(self, pair: Pair) -> None:
        source, _ = pair
        with pytest.raises(LeafError, match="user/odd"):
            source.send_checkpoint([1], 5, {"user": {"odd": object()}}, WAIT)

    def test_many_states_one_after_another(self, pair: Pair) -> None:
        source, destination = pair
        into = {"w": torch.zeros(1 << 18), "b": torch.zeros(3)}
        for step in range(1, 5):
            source.send_checkpoint([1], step, {"w": torch.full((1 << 18,), float(step)), "b": torch.ones(3)}, WAIT)
            result = destination.recv_checkpoint(0, source.metadata(), step, WAIT, into=into)
            assert result["w"] is into["w"]
            assert into["w"].min() == into["w"].max() == step
            source.disallow_checkpoint()

    def test_a_time_that_is_none_is_refused(self, pair: Pair) -> None:
        source, destination = pair
        with pytest.raises(ConfigError, match="timeout"):
            destination.recv_checkpoint(0, source.metadata(), 1, -1.0)

    def test_shutdown_twice(self, pair: Pair) -> None:
        for transport in pair:
            transport.shutdown()
            transport.shutdown(wait=False)
