"""The interface of everything that moves live state between replica groups (names and meaning of the peer's)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class CheckpointTransport(ABC, Generic[T]):
    """Sends the state of one training rank to the ranks of other groups, and receives theirs.

    A source calls `send_checkpoint` once per quorum with healers, and `disallow_checkpoint` before its state moves on.
    A healer calls `recv_checkpoint` with the source's `metadata()`. States are named by (step, committed_in).
    """

    @abstractmethod
    def metadata(self) -> str:
        """What `recv_checkpoint` of another process needs to find this one."""

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
        """The state of `src_rank`, written into the tensors of `into` where path, dtype and shape fit.

        Raises `TransferError`, whose `torn` says whether tensors of `into` were already written to, or `TokenError`.
        """

    def mirror_checkpoint(self, step: int, state_dict: T, *, committed_in: int = 0) -> None:
        """Offer a state that others copy from another rank in the first place, if that pays: its `recv_checkpoint` has an
        argument `mirrors`. Nobody is promised it. Raises `LeafError`.
        """
        raise NotImplementedError(f"{self!r} can't copy a state from several sources.")

    def prepare(self, state_dict: T) -> None:
        """A state like this one will be offered some day: get the memory for it, so that the first `send_checkpoint`
        takes as long as later ones. Returns at once. Raises `LeafError`.
        """

    def progress(self) -> tuple[int, bool] | None:
        """How those come along who copy what was offered last: a number that grows while they do, and whether all of them
        have it. None: this transport can't say. Never blocks; from any thread.
        """
        return None

    def received(self) -> tuple[int, int] | None:
        """Of the state that `recv_checkpoint` copies, or has copied last: bytes that have come, and all there are. None: this
        transport can't say, or nothing was copied yet. Never blocks; from any thread.
        """
        return None

    def before_commit(self) -> None:
        """The state changes when this returns. Only of interest to who hands out the state itself and not a copy."""

    @abstractmethod
    def disallow_checkpoint(self) -> None:
        """The state is about to change: nobody new may read it as of this step. Never blocks."""

    @abstractmethod
    def shutdown(self, wait: bool = True) -> None:
        """Stop serving. With `wait`, readers in progress may finish first, up to the timeout."""
