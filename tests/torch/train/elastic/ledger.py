"""A model whose parameters count how often each sample was trained, so that a test need not trust the library's own count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.torch.train.jobs import Trainer
from torchft_x.train.elastic.sampler import ElasticSampler, Micro
from torchft_x.train.optim import OptimizerWrapper


class Ledger(nn.Module):
    """Count of each sample of each epoch. The gradient of the loss is 1/len(batch) at each of the batch's samples."""

    def __init__(self, epochs: int, length: int) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(epochs, length, dtype=torch.float64))

    def forward(self, samples: list[tuple[int, int]]) -> torch.Tensor:
        epochs, indices = zip(*samples, strict=True)
        return self.count[list(epochs), list(indices)].mean()


class Count(torch.optim.Optimizer):
    """Adds one to the count of each sample in the gradient. All samples of a step must have the same weight."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (param,) = self.param_groups[0]["params"]
        found = param.grad[param.grad > 0]
        assert found.numel(), "a step without samples"
        torch.testing.assert_close(found, torch.full_like(found, 1 / found.numel()))
        param.add_((param.grad > 0).double())


class LedgerTrainer(Trainer):
    """Trains a `Ledger` with an `ElasticSampler`."""

    def __init__(
        self, group: int, address: str, length: int, epochs: int, dealing: dict[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(group, address, net=Ledger(epochs + 3, length), **kwargs)
        self.optim = Count(self.net.parameters())  # type: ignore[assignment]
        self.optimizer = OptimizerWrapper(self.manager, self.optim)
        self.data = self.make_data(length, dict(dealing))
        self.epochs = epochs

    def make_data(self, length: int, dealing: dict[str, Any]) -> ElasticSampler:
        return ElasticSampler(self.manager, length, **dealing)

    def compute(self, micro: Micro) -> torch.Tensor:
        """Return the loss of a micro batch."""
        loss: torch.Tensor = self.model([(s.epoch, s.index) for s in micro.samples])
        return loss

    def one_step(self, hook: Callable[[Micro], None] = lambda micro: None) -> bool:
        self.optimizer.zero_grad()
        for micro in self.data.step():
            loss = self.compute(micro)
            hook(micro)
            loss.backward()
        self.optimizer.step()
        return bool(self.optimizer.committed)

    def train(self, hook: Callable[[Micro], None] = lambda micro: None) -> LedgerTrainer:
        while self.data.epoch < self.epochs:
            self.one_step(hook)
        return self

    @property
    def counts(self) -> torch.Tensor:
        count: torch.Tensor = self.net.count  # type: ignore[assignment]
        return count.detach()

    def check(self, used: int | None = None) -> None:
        """Check that each sample of each completed epoch was trained once, and no other sample twice."""
        done = self.counts[: self.epochs]
        if used is None:
            assert torch.all(done == 1), done
        else:
            assert torch.all(done.sum(1) == used), done.sum(1)
        assert self.counts.max() == 1
