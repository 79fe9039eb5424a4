"""The position in the data, of either kind."""

from __future__ import annotations

from torchft_x.core.data.state import DataState
from torchft_x.core.data.stream_state import StreamState
from torchft_x.errors import ConfigError

Position = DataState | StreamState


def read_position(text: str) -> Position:
    """Read the result of either's ``to_json``. Raises `ConfigError` if it is none."""
    return StreamState.from_json(text) or DataState.from_json(text)


def check_same(saved: Position, mine: Position) -> None:
    """Raise `ConfigError` unless a saved position is one in this group's data."""
    if isinstance(saved, DataState):
        if isinstance(mine, DataState):
            return saved.check_same(mine)
    elif isinstance(mine, StreamState):
        return saved.check_same(mine)
    raise ConfigError(
        "the saved position is one in streams and this run deals the samples of a data set, or the other way round; use the kind "
        "of loader of the saved run."
    )
