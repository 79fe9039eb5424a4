"""Interface of everything that moves live state between replica groups (names and meaning are torchft's)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class CheckpointTransport(ABC, Generic[T]):
    """Sends the state of one training rank to the ranks of other groups, and receives theirs.

    A source calls `send_checkpoint` once per quorum with healers, and `disallow_checkpoint` before its state moves
    on. A healer calls `recv_checkpoint` with the source's `metadata()`. A state is identified by (step,
    committed_in).
    """

    @abstractmethod
    def metadata(self) -> str:
        """Return the text by which `recv_checkpoint` of another process finds this one."""

    @abstractmethod
    def send_checkpoint(
        self,
        dst_ranks: list[int],
        step: int,
        state_dict: T,
        timeout: float | timedelta,
        *,
        committed_in: int = 0,
    ) -> None:
        """Offer `state_dict`, the state after `step` committed steps, to the replica ranks `dst_ranks`.

        Raises `LeafError` naming the path of a value that can't be sent.
        """

    @abstractmethod
    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta,
        *,
        committed_in: int = 0,
        into: T | None = None,
    ) -> T:
        """Return the state of `src_rank`, written into the tensors of `into` where path, dtype and shape fit.

        Raises `TransferError`, whose `torn` says whether tensors of `into` were already written to, or `TokenError`.
        """

    def mirror_checkpoint(self, step: int, state_dict: T, *, committed_in: int = 0) -> None:
        """Offer a state, if that pays, as a further source for ranks that copy it from another. Raises `LeafError`.

        Only for transports whose `recv_checkpoint` has an argument `mirrors`. The state is promised to no rank.
        """
        raise NotImplementedError(f"{self!r} can't copy a state from several sources.")

    def prepare(self, state_dict: T) -> None:
        """Allocate memory for a state like this one, so that the first `send_checkpoint` is as fast as later ones.

        Returns at once. Raises `LeafError`.
        """

    def progress(self) -> tuple[int, bool] | None:
        """Return the readers' progress: a number that grows while they copy the last offer, and whether all have it.

        None if this transport can't tell. Never blocks; from any thread.
        """
        return None

    def received(self) -> tuple[int, int] | None:
        """Return the bytes received and the total bytes of the present or last state of `recv_checkpoint`.

        None if this transport can't tell, or has copied nothing yet. Never blocks; from any thread.
        """
        return None

    def before_commit(self) -> None:
        """Prepare for a state change after this returns. Only if the transport serves the state itself, not a copy."""

    @abstractmethod
    def disallow_checkpoint(self) -> None:
        """Refuse new readers of this step, since the state is about to change. Never blocks."""

    @abstractmethod
    def shutdown(self, wait: bool = True) -> None:
        """Stop serving. With `wait`, readers in progress may finish first, up to the timeout."""
