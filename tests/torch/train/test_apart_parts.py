"""Exchanges of groups that train apart: the census weighs them, so that a group's number may change (I9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.fakes import run_threads
from tests.torch.train.test_apart_faults import Watched, explain
from torchft_x.core.heal import WorldSizeMode
from torchft_x.observe.events import read_events


class GoneError(Exception):
    """The group has left."""


def leave_while_it_sends(group: Watched) -> None:
    """Its next reduction of weights, not the census, is where it leaves."""
    real = group.pg.allreduce

    def allreduce(tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].dtype is torch.float64:
            return real(tensors, opts)
        group.manager.shutdown(finished=False)
        raise GoneError

    group.pg.allreduce = allreduce  # type: ignore[method-assign]


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_spare_that_counts_sends_its_work_again(leaver: int, run_dir: Path, pair_address: str) -> None:
    options = {"min_replica_size": 2, "world_size_mode": WorldSizeMode.FIXED_WITH_SPARES}
    groups = run_threads(3, lambda g: Watched(g, pair_address, sync_every=2, manager=options))
    begin = groups[0].weights()

    def body(i: int) -> None:
        group = groups[i]
        with group.loop:
            while group.loop.exchanges < 3:
                if group.loop.exchanges == 1 and i == leaver:
                    leave_while_it_sends(group)
                try:
                    group.step()
                except Exception:
                    if i != leaver:
                        raise
                    return

    run_threads(3, body)
    stayed = [g for g in groups if g.group != leaver]
    ids = [g.group for g in stayed]
    explain(groups, lambda k: [0, 1] if k == 1 else ids, 3, begin)
    redone = {str(e["group"]) for e in read_events(run_dir) if e["event"] == "redo"}
    assert redone == {f"group_{g}" for g in ids}
