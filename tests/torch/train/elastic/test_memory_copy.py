"""The position in the data in copies of the state that outlive the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.torch.train.jobs import Trainer, batch, lighthouse
from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.train.context import memory_checkpoint as module
from torchft_x.train.elastic.sampler import ElasticSampler


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointMemory]:
    memory = CheckpointMemory(1)
    monkeypatch.setenv(env.ATTEMPT, str(env.AttemptEnv(memory_slots=memory.setting(1 << 24))))
    monkeypatch.setattr(module, "_taken", set())
    yield memory
    memory.close()


class OneRank:
    """One attempt of a group of one rank, with one sample for each step."""

    def __init__(self, address: str) -> None:
        module._taken.clear()
        self.trainer = Trainer(0, address)
        self.data = ElasticSampler(self.trainer.manager, 10**6, policy="shrink", micro_batch=1)

    def step(self) -> None:
        self.trainer.optimizer.zero_grad()
        for micro in self.data.step():
            self.trainer.model(batch(0, micro.samples[0].position)).sum().backward()
        self.trainer.optimizer.step()

    def train_until_held(self, after: int) -> int:
        """Return the step of a copy made at or after this step."""

        def held() -> bool:
            self.step()
            return copies.common is not None and copies.common.step >= after

        memory = self.trainer.manager.context.memory
        assert memory is not None
        copies = memory._copies
        wait_for(held, 20, "a copy")
        assert copies.common is not None
        return copies.common.step


def test_a_position_travels_with_the_copy_however_long_its_text_becomes(memory: CheckpointMemory) -> None:
    with lighthouse(1) as address:
        first = OneRank(address)
        at = first.train_until_held(3)
        context = first.trainer.manager.context
        with context.failures.lock:
            debt = tuple((0, 10 * i, 10 * i + 2) for i in range(1_000))
            context.step.data = replace(first.data.position, cursor=20_000, debt=debt)
        at = first.train_until_held(at + 3)
        later = first.trainer.manager.current_step()
        first.trainer.manager.shutdown(finished=False)
        second = OneRank(address)
        second.step()
        restored = second.trainer.manager.current_step() - 1
        assert at <= restored <= later
        assert 2_000 - later <= second.data.position.owed < 2_000
        assert second.data.position.cursor == 20_000
        second.trainer.manager.shutdown()
