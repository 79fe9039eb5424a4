"""torchtitan's own fault-tolerant debug model as a user's config, without the parts that a CPU can't run.

    python -m torchft_x.compat -m torchtitan.train --module titan_config --config debugmodel --fault_tolerance.replica_id 0 ...

Flex attention would be compiled, which takes minutes. CUDA graphs, the profiler and bfloat16 are for GPUs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from titan_data import ElasticDataLoader, ElasticTrainer
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.tools.profiler import Profiler


class Told(FaultTolerantTrainer):
    """Trainer that prints a digest of its weights after each step that changed the shared state, for comparison."""

    @dataclass(kw_only=True, slots=True)
    class Config(FaultTolerantTrainer.Config):
        pass

    def train(self) -> None:
        self._begun = False
        super().train()

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        manager = self.ft_manager.manager
        before = manager.current_step()
        if not self._begun:
            self._begun = True
            print(f"begins after step {self.step - 1}: {self._digest()}", flush=True)
        result = super().train_step(*args, **kwargs)
        if manager.current_step() != before:
            print(f"shared at {manager.current_step()}: {self._digest()}", flush=True)
        return result

    def close(self) -> None:
        if hasattr(self, "model_parts"):
            print(f"done at step {self.step}: sum of the weights {self._digest()}", flush=True)
        super().close()

    def _digest(self) -> str:
        total = sum(float(p.full_tensor().detach().double().sum()) for p in self.model_parts[0].parameters())
        return f"{total:.12f}"


class ToldElastic(Told, ElasticTrainer):
    """`Told` over an `ElasticLoader`, whose samples are written to GROUP.samples (`record_samples`)."""

    @dataclass(kw_only=True, slots=True)
    class Config(FaultTolerantTrainer.Config):
        pass

    def train(self) -> None:
        from tests.extended.compat.record_samples import record

        record(Path(f"{os.environ['REPLICA_GROUP_ID']}.samples"))
        super().train()


def elasticmodel() -> ToldElastic.Config:
    config = debugmodel()
    config.dataloader = ElasticDataLoader.Config()
    return ToldElastic.Config(**{f.name: getattr(config, f.name) for f in fields(config)})


def podmodel() -> Told.Config:
    """As `debugmodel`, in a container: the data set and the tokenizer are made in its current folder."""
    from tests.extended.compat.titan_assets import make

    make(Path())
    return debugmodel()


def debugmodel() -> Told.Config:
    config = llama3_torchft_debugmodel()
    assert config.model_spec is not None
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.training.local_batch_size, config.training.seq_len = 2, 64
    config.profiler = Profiler.Config()
    config.activation_checkpoint = None
    config.metrics.disable_color_printing = True
    config.fault_tolerance.process_group = "gloo"
    return Told.Config(**{f.name: getattr(config, f.name) for f in fields(config)})
