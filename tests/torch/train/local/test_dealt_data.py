"""A group's lane in the data of groups that train apart."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.state import DataState
from torchft_x.train.local.dealt_data import DealtData
from torchft_x.train.manager import Manager


def test_an_adopted_exchange_gives_the_lane_of_its_own_quorum() -> None:
    """The quorum in hand is then a later one, in which this group may have another number."""
    step = SimpleNamespace(data=DataState(0, 100, lanes=3), data_options=DataOptions(Policy.SHRINK, 1, 1))
    settled: list[Any] = []
    of_step = SimpleNamespace(cover_slots=settled.append)
    steps = SimpleNamespace(role=SimpleNamespace(plan=SimpleNamespace(replica_rank=2)), data=of_step)
    context = SimpleNamespace(step=step, failures=SimpleNamespace(lock=contextlib.nullcontext()))
    manager = SimpleNamespace(context=context, steps=steps, _use_async_quorum=False)
    data = DealtData(cast(Manager, manager), 4, delay=0, begin=lambda: None)
    data.start()
    data.counted([0.0, 0.0, 0.0])
    steps.role = SimpleNamespace(plan=SimpleNamespace(replica_rank=1))
    data.committed()
    assert of_step.deal_inner_step().slots == [8]  # the first of lane 2
    assert data.row() == [0.0, 0.0, 1.0]
