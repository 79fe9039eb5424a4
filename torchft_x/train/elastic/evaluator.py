"""Evaluates the model on a second data set, in all groups together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp

from torchft_x.core.data.deal import shares
from torchft_x.core.data.ranges import cut, members
from torchft_x.core.types import Part, Quorum, State
from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

Sums = Callable[[list[list[int]]], Iterable[torch.Tensor]]
"""Function of batches of indices that yields a tensor of sums for each of them, in their order."""


class ElasticEvaluator:
    """Adds up numbers over a second data set, each sample exactly once, whichever groups die, join or leave meanwhile.

    ::

        evaluation = ElasticEvaluator(manager, len(validation), batch=64, every=1000)

        @torch.no_grad()
        def sums(batches):
            for x, y in DataLoader(validation, batch_sampler=batches, num_workers=4):
                out = model(x)
                yield torch.stack([cross_entropy(out, y, reduction="sum"), (out.argmax(1) == y).sum()])

        while manager.current_step() <= 100_000:
            optimizer.zero_grad()
            if evaluation.due():
                if evaluation.run(sums):
                    loss, right = (s / len(validation) for s in evaluation.sums)
                continue
            ...  # a training step

    An evaluation is a step of its own, which changes neither parameters nor the position in the data. If a group is lost in
    it, the step is dropped; the next attempt computes only what the remaining groups do not have. The batches' sums are
    added in float64 and in the data set's order, so the result has the same bits for any number of groups, and as in one
    process, if each batch has.

    `step` and `sums` are the newest evaluation: the number of commits before it, and a float for each number. A heal copies
    them, so all groups know them. For checkpoints there are ``state_dict()`` and ``load_state_dict()``.

    Args:
        manager: this rank's Manager. One evaluator for each Manager, made before the first step.
        length: number of samples.
        batch: samples of a batch; the last one may have fewer.
        every: `due` is true each `every` steps; 0: only where the script says so.

    Raises:
        ConfigError: bad numbers, or a second evaluator.
    """

    def __init__(self, manager: Manager, length: int, *, batch: int, every: int = 0) -> None:
        if min(length, batch) < 1 or every < 0:
            raise ConfigError(f"{length} samples, batch {batch}: each is at least 1; every {every} is at least 0.")
        self.step = -1  # -1 before the first evaluation
        self.sums: list[float] = []
        self._manager = manager
        self._batches = [list(range(i, min(i + batch, length))) for i in range(0, length, batch)]
        self._every = every
        self._rows: dict[int, torch.Tensor] = {}  # sums of the batches that this rank has computed at `_rows_at`
        self._rows_at = State()
        manager.register_state_dict_fn("evaluation", self.load_state_dict, self.state_dict)
        manager.declare("evaluation", f"{length} samples in batches of {batch}, every {every} steps")

    def due(self, now: bool = False) -> bool:
        """Return whether the step that ``zero_grad()`` has started is an evaluation. Equal in all groups.

        Args:
            now: evaluate in this step in any case. Groups must agree on that, too. A group that copies its state beside the
                training knows only the step's number, so other conditions need Manager(use_async_quorum=False).
        """
        steps = self._manager.steps
        steps.wait_quorum()
        if steps.rehearsal.is_on:
            return False
        step = self._manager.context.step.top.step
        return now or bool(self._every and step and step % self._every == 0)

    @property
    def newest(self) -> bool:
        """Whether the parameters are those of the newest evaluation."""
        return self.step + 1 == self._manager.current_step() > 0

    def run(self, sums: Sums) -> bool:
        """Evaluate in this step in place of training, and end it. Return whether it is committed, so that there is a result.

        Every rank of every group must call it in the same step. If not, begin the next step, in which it is due again.

        Args:
            sums: yields the sums of each batch. It uses the model itself, not its `DistributedDataParallel`. Ranks of a group
                are given the same batches, and must yield the same sums.

        Raises `ConfigError` unless there are as many tensors as batches, and the errors of `Manager.should_commit`.
        """
        manager, steps = self._manager, self._manager.steps
        steps.wait_quorum()
        steps.data.rest()
        role, state = steps.role, manager.context.step.state
        assert role is not None, "its quorum has come"
        if self._rows_at != state:
            self._rows, self._rows_at = {}, state
        mine = _share(len(self._batches), role.quorum, role.part)
        # A group without a share computes a batch, to know how many sums there are.
        todo = [i for i in mine if i not in self._rows] if mine else [0]
        found = list(sums([self._batches[i] for i in todo])) if todo else []
        if len(found) != len(todo):
            raise ConfigError(f"sums() yielded {len(found)} tensors for {len(todo)} batches; yield one for each batch.")
        rows = {i: row.detach().to(torch.float64).reshape(-1) for i, row in zip(todo, found, strict=True)}
        if mine:
            self._rows |= rows
            rows = self._rows
        width = next(iter(rows.values()))
        table = width.new_zeros(len(self._batches), len(width))
        for i in mine:
            table[i] = rows[i]
        manager.allreduce(table, reduce_op=ReduceOp.SUM)  # each row is added to zeros
        if not manager.should_commit():
            return False
        self.step, self.sums = manager.current_step() - 1, [sum(column) for column in table.T.tolist()]
        self._rows = {}
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the newest evaluation."""
        return {"step": self.step, "sums": list(self.sums)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the newest evaluation, with the parameters of that time."""
        self.step, self.sums = state_dict["step"], list(state_dict["sums"])
        self._rows = {}  # those of other parameters


def _share(batches: int, quorum: Quorum, part: Part) -> list[int]:
    """Return the batches that the contributor with this part computes, by the groups' weights. None contributes zeros."""
    if part.rank is None:
        return []
    weights = {m.replica_id: m.weight for m in quorum.members}
    return members(cut(((0, batches),), shares(batches, [weights[name] for name in part.contributors]))[part.rank])
