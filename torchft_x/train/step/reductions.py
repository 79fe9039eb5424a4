"""The reductions of the step in hand, and the local gradients with which they can be done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchft_x.comm.quantized.agree_format import agree
from torchft_x.comm.quantized.format import Format
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError, UnreachableError
from torchft_x.train.context import work
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.work import ManagedWork

TRANSPORT = (CollectiveError, DeadlineError, UnreachableError)
"""What a lost member or a broken connection looks like: the gradients are as good as before."""


class Kept(Protocol):
    """Who holds the local gradients of a pass."""

    def intact(self) -> bool:
        """Whether they can be reduced again: they are kept, and nobody has touched their result."""

    def reduce_again(self) -> bool:
        """Reduce them in the quorum in hand. False: it failed, and was reported."""


class Reductions:
    """See the module. Used by the training thread.

    Args:
        pg: the process group between the groups.
        keeps: a step that failed may be reduced again.
    """

    def __init__(self, context: RankContext, pg: Any, *, keeps: bool) -> None:
        self.works: list[ManagedWork] = []  # of the step in hand; awaited before the vote
        self._context = context
        self._pg = pg
        self._keeps = keeps  # fixed
        self._kept: list[Kept] = []  # passes of the step in hand
        self._kept_works = 0  # reductions that belong to them
        self._unwanted = False  # the script is against the step's gradients
        self._agreed = 0  # configuration of the process group whose members quantise alike

    def clear(self) -> None:
        """A step begins."""
        self.works.clear()
        self._kept, self._kept_works, self._unwanted = [], 0, False

    def reduce(
        self,
        tensor: torch.Tensor,
        op: Any,
        fmt: Format | None,
        *,
        possible: bool,
        lost: torch.Tensor | None,
        before: Callable[[int, int], None] | None,
    ) -> ManagedWork:
        """Start a reduction in the quorum in hand, unless it is not `possible`. See `Manager.allreduce`.

        Raises `ConfigError` if the groups quantise differently.
        """
        c = self._context
        with c.failures.lock:
            quorum_id, rank, size, failed = c.step.quorum_id, c.step.rank, c.step.size, c.step.error is not None
            turn = c.step.top.step if c.options.commit_vote else None
        inner = None
        if possible and not failed:
            try:
                if fmt is not None and self._agreed != (config := c.failures.config_id):
                    agree(self._pg, fmt, tensor.device, contributes=rank is not None)
                    self._agreed = config
                inner = work.issue(
                    self._pg, tensor, op, contributes=rank is not None, participants=size, fmt=fmt,
                    lost=lost, before=before, sent=c.bytes_sent, still=lambda: c.step.quorum_id == quorum_id,
                )  # fmt: skip
            except Exception as e:
                c.failures.fail(e, quorum_id)
                if isinstance(e, ConfigError):
                    raise
        managed = ManagedWork(inner, tensor, c.waits, lambda e: c.failures.fail(e, quorum_id), turn=turn)
        self.works.append(managed)
        return managed

    def wait(self) -> None:
        """Wait for all of them; what failed is reported."""
        for managed in self.works:
            managed.wait()
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().synchronize()  # so that asynchronous errors are seen before the vote
        error = self._pg.errored()
        if error is not None:
            self._context.failures.fail(error)

    # --- again --------------------------------------------------------------------------------------------------------

    def keep(self, kept: Kept, works: int) -> bool:
        """A pass ends: its newest `works` reductions can be done again by `kept`. False: its gradients aren't wanted."""
        again = kept in self._kept  # a second pass over the same parameters has added to the first one's result
        self._kept = [] if again else [*self._kept, kept]
        self._kept_works = 0 if again else self._kept_works + works
        return self._keeps

    def object(self, error: Exception) -> None:
        """The script is against the step, which may have failed before for another reason."""
        self._unwanted = self._unwanted or not isinstance(error, TRANSPORT)

    def may_repeat(self, error: Exception | None) -> bool:
        """Whether a step that failed with `error` can be reduced again unseen. All its reductions must be among the kept
        ones: a group that computes the step anew issues them all, in the same order."""
        good = not self._unwanted and (error is None or isinstance(error, TRANSPORT))
        whole = bool(self._kept) and self._kept_works == len(self.works)
        return self._keeps and good and whole and all(k.intact() for k in self._kept)

    def repeat(self) -> None:
        """Reduce what is kept again, in the quorum in hand."""
        self.works.clear()
        for kept in self._kept:
            if not kept.reduce_again():
                break
        self._kept_works = len(self.works)
