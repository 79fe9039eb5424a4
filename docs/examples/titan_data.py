"""torchtitan's fault-tolerant trainer over an `ElasticLoader`: each sample is committed exactly once per epoch.

docs/trainers.md describes it. Give torchtitan this file as the module, or copy the two classes into yours:

    torchx run -s local_cwd ft.titan --module titan_data --config debugmodel
"""

from dataclasses import dataclass, fields

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer

from torchft_x import ElasticLoader


class ElasticDataLoader(BaseDataLoader):
    """torchtitan's data loader over a data set with ``len()`` and ``[i]``. A step has one batch for each group and rank.

    The Manager holds the position in the data, so the state is the trainer's.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        num_workers: int = 0

    def __init__(self, config: Config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, **_) -> None:
        self._config, self._place = config, (dp_rank, dp_world_size)
        self._data, self._batch = Windows(seq_len), local_batch_size

    def open(self, manager, groups: int) -> None:
        """Deal the samples of each step from now on. torchtitan makes the loader without the Manager."""
        rank, ranks = self._place[0], self._place[1] // groups  # of all groups together
        self._loader = ElasticLoader(
            manager, self._data, policy="shrink", micro_batch=self._batch * ranks, rank=rank % ranks, ranks=ranks,
            num_workers=self._config.num_workers,
        )  # fmt: skip

    def __iter__(self):
        while True:  # torchtitan asks for a batch after zero_grad(), which starts the step
            yield from (micro.batch for micro in self._loader.step())

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None: ...


class ElasticTrainer(FaultTolerantTrainer):
    """Trainer that gives its Manager to the data loader, and saves the position in the data with its own counters."""

    @dataclass(kw_only=True, slots=True)
    class Config(FaultTolerantTrainer.Config): ...

    def __init__(self, config: Config) -> None:
        self._resumes = True  # until the first step; a heal then brings the position
        super().__init__(config)
        self.dataloader.open(self.ft_manager.manager, self.ft_manager.group_size)

    def train_step(self, data_iterator) -> None:
        self._resumes = False
        super().train_step(data_iterator)

    def state_dict(self) -> dict:
        return {**super().state_dict(), "data": self.ft_manager.manager.state_dict()["data"]}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        if self._resumes:
            manager = self.ft_manager.manager
            manager.load_state_dict({**manager.state_dict(), "data": state_dict["data"]})


class Windows:
    """Data set of windows of a text. Replace it by yours, such as a memory map of tokens."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, i: int):
        tokens = (torch.arange(self._length + 1) + i) % 64
        return {"input": tokens[:-1], "positions": torch.arange(self._length)}, tokens[1:]


def debugmodel() -> ElasticTrainer.Config:
    """Return torchtitan's debug model with these classes."""
    return elastic(llama3_torchft_debugmodel())


def elastic(config: FaultTolerantTrainer.Config) -> ElasticTrainer.Config:
    """Return a config of torchtitan's with these classes in place of its own."""
    config.dataloader = ElasticDataLoader.Config()
    return ElasticTrainer.Config(**{f.name: getattr(config, f.name) for f in fields(config)})
