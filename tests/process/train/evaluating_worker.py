"""One group as a process that trains, and evaluates each 10 steps.

Lines: "try" begins an attempt to evaluate; "row" comes before each batch; "result" has the bits of the sums, and "commit" the
digest of the parameters. The parameters of each evaluation lie in the file evaluated-STEP.pt beside the lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
from torch import nn

from tests.torch.train.jobs import Told, Trainer
from torchft_x.train.elastic.evaluator import ElasticEvaluator
from torchft_x.train.elastic.loader import ElasticLoader

LENGTH, BATCH, EVERY = 203, 4, 10


class Samples:
    """A data set of random inputs."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(6, generator=torch.Generator().manual_seed(index))


@torch.no_grad()
def sums_of(net: nn.Module, batch: list[int]) -> torch.Tensor:
    """Return a batch's loss, and how often each sample is in it."""
    x = torch.stack([Samples()[i] for i in batch])
    counts = torch.zeros(LENGTH)
    counts[batch] += 1
    return torch.cat([net(x).square().sum().reshape(1), counts])


def bits(sums: list[float]) -> str:
    """Return the loss, and how many samples were counted once and not once."""
    once = sum(n == 1 for n in sums[1:])
    return f"{sums[0].hex()}/{once}/{LENGTH - once}"


def main(told: Told) -> None:
    trainer = Trainer(told.group, told.lighthouse, rehearse=True)
    data = ElasticLoader(trainer.manager, Samples(), global_batch=24, micro_batch=4)
    evaluation = ElasticEvaluator(trainer.manager, LENGTH, batch=BATCH, every=EVERY)

    def sums(batches: list[list[int]]) -> Iterator[torch.Tensor]:
        told.say("try", step, str(len(batches)))
        for batch in batches:
            told.say("row", step)
            yield sums_of(trainer.net, batch)
            time.sleep(0.01)

    while told.goes_on(step := trainer.manager.current_step()):
        trainer.optimizer.zero_grad()
        if not evaluation.due():
            for micro in data.step():
                trainer.model(micro.batch).square().mean().backward()
            told.step(trainer, trainer.finish_step())
            continue
        step = trainer.manager.current_step()
        committed = evaluation.run(sums)
        if committed:
            mine = told.path.with_name(f"mine-{told.group}")
            torch.save(trainer.net.state_dict(), mine)
            os.replace(mine, told.path.with_name(f"evaluated-{evaluation.step}.pt"))
            told.say("result", evaluation.step, bits(evaluation.sums))
        told.step(trainer, committed)
    told.say("newest", evaluation.step, bits(evaluation.sums))
    trainer.manager.shutdown()
