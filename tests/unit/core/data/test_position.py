"""A position in streams, and which positions fit together."""

from __future__ import annotations

import pytest

from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.position import check_same, read_position
from torchft_x.core.data.state import DataState
from torchft_x.core.data.stream_state import StreamState
from torchft_x.errors import ConfigError

OPTIONS = DataOptions(Policy.CONSTANT, 3, 1)


def test_streams_that_are_left_out_stay() -> None:
    state = StreamState((0, 4, 4)).commit(((0, 1), (2, 3)), OPTIONS)
    assert state == StreamState((1, 4, 5))
    assert (state.committed(OPTIONS), state.owed) == (10, 0)


@pytest.mark.parametrize("position", [StreamState((0, 7)), DataState(1, 10, "d", 2, 3, ((1, 0, 4),))])
def test_a_position_survives_as_text(position: DataState | StreamState) -> None:
    assert read_position(position.to_json()) == position


def test_a_position_of_other_data_is_refused() -> None:
    check_same(StreamState((1, 2)), StreamState((0, 0)))
    with pytest.raises(ConfigError, match="one in 1 streams, and this run has 2"):
        check_same(StreamState((1,)), StreamState((0, 0)))
    with pytest.raises(ConfigError, match="the other way round"):
        check_same(StreamState((1,)), DataState(0, 10))
    with pytest.raises(ConfigError, match="the other way round"):
        check_same(DataState(0, 10), StreamState((1,)))
    with pytest.raises(ConfigError, match="no position"):
        read_position('["streams", [1, -2]]')
