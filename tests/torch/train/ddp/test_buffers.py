"""Buffers that the forward changes: said once, and how a script makes them alike."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, lighthouse
from torchft_x.train.ddp.buffers import watch_buffers


def net(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))


def forward(module: nn.Module) -> None:
    with watch_buffers(module, refuse=False):
        module(torch.randn(4, 6))


def test_batch_norms_statistics_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(
        UserWarning, match=r"the forward changes the buffer 1\.running_mean and 1 more, as BatchNorm does"
    ):
        forward(net(nn.BatchNorm1d(8)))
    monkeypatch.setenv("RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(net(nn.BatchNorm1d(8)))  # rank 0 has said it


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(8), nn.BatchNorm1d(8).eval(), nn.BatchNorm1d(8, track_running_stats=False)]
)
def test_what_does_not_change_is_not_said(norm: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(net(norm))


def average_buffers(trainer: Trainer, step: Any) -> None:
    """As docs/write_a_script.md says."""
    own = [b for b in trainer.net.buffers() if b.is_floating_point()]
    averages = [b.clone() for b in own]
    works = [trainer.manager.allreduce(a) for a in averages]
    step()
    for work in works:
        work.wait()
    trainer.optimizer.step()
    if trainer.optimizer.committed:
        for b, a in zip(own, averages, strict=True):
            b.copy_(a)


def test_they_differ_between_groups_until_a_script_averages_them() -> None:
    with lighthouse(2) as address, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")

        def body(group: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            torch.manual_seed(0)
            trainer = Trainer(group, address, net=net(nn.BatchNorm1d(8)), min_replica_size=2)
            trainer.run_to(3)
            before = [b.clone() for b in trainer.net.buffers()]
            trainer.optimizer.zero_grad()
            loss = trainer.model(torch.randn(4, 6)).square().mean()
            average_buffers(trainer, loss.backward)
            trainer.manager.shutdown()
            return before, [b.clone() for b in trainer.net.buffers()]

        results = run_threads(2, body)
    (before, after), (others_before, others_after) = results
    assert not torch.equal(before[0], others_before[0])
    assert all(torch.equal(a, b) for a, b in zip(after, others_after, strict=True))
    told = [w for w in said if "running_mean" in str(w.message)]
    assert len(told) == 2, "one for each group's first forward"
