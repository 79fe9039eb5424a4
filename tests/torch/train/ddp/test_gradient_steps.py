"""Who reduces for the reducer: the Manager's loop of steps, a stand-in's `allreduce`, or a script's own."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.manager import Manager


def manager(kind: type[Manager] = Manager) -> Any:
    made = object.__new__(kind)
    made.steps = mock.Mock(**{"scale.return_value": 0.5, "end_pass.return_value": True})
    return made


def test_the_managers_own_loop_is_called_without_the_manager() -> None:
    made = manager()
    assert steps_of(made) is made.steps


class Compressing(Manager):
    def allreduce(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return "compressed", kwargs


def test_a_managers_own_way_to_reduce_is_taken() -> None:
    made = manager(Compressing)
    steps = steps_of(made)
    assert steps.scale() == 0.5
    assert steps.reduce(torch.zeros(1), dist.ReduceOp.SUM) == ("compressed", {"reduce_op": dist.ReduceOp.SUM})
    assert steps.reduce(torch.zeros(1), dist.ReduceOp.AVG) == ("compressed", {})
    kept: Any = object()
    assert steps.end_pass(kept, 2, False, print)
    made.steps.end_pass.assert_called_once_with(kept, 2, False, print)
    steps.reject_step(error := ValueError("why"))  # by the Manager's report_error, to its loop
    made.steps.reject_step.assert_called_once_with(error)


def test_so_is_one_that_has_replaced_it() -> None:
    made = manager()
    made.report_error = mock.Mock()
    steps_of(made).reject_step(error := ValueError("why"))
    made.report_error.assert_called_once_with(error)
