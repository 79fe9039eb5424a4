"""A member's rank in a group, and the errors for a group that can't be used."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchft_x.errors import CollectiveError, ConfigError


class RankInfo(NamedTuple):
    rank: int
    size: int  # number of members
    config_id: int | None  # the quorum's id for this set of members; None if the caller has none

    def __str__(self) -> str:
        config = "" if self.config_id is None else f" of configuration {self.config_id}"
        return f"rank {self.rank} of {self.size}{config}"


def checked(rank: int, size: int, config_id: int | None) -> RankInfo:
    """Return a `RankInfo`. Raise `ConfigError` unless ``0 <= rank < size``."""
    if not 0 <= rank < size:
        raise ConfigError(f"Rank {rank} is not in 0..{size - 1}: give a rank below world_size.")
    return RankInfo(rank, size, config_id)


def refusal(op: str, members: Any) -> CollectiveError:
    """Return why a collective can't be started among the `_present` members of a `RebuiltGroup`."""
    if members is None:
        return CollectiveError(f"{op} was not started: the group has no members yet; call configure().")
    error = members.error
    if error is None:
        return CollectiveError(f"{op} on {members.info} was not started: configure() is still connecting the members.")
    return CollectiveError(
        f"{op} was not started, because the group failed before and needs configure(): {error}",
        getattr(error, "suspects", ()),
    )
