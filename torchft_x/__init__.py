"""Fault-tolerant training with replica groups: torchft's API, launched anywhere by TorchX.

The subpackages, bottom up: `core` has the pure rules, without clock or socket. `observe` records and reports events. `rpc`
is the only one that uses grpc. `comm` has process groups that can be rebuilt. `transfer` moves state. `train` has the API
for training scripts. `launch` starts the processes of a job. CONTRIBUTING.md is the map.

Names are loaded on first use, so that the launcher and the lighthouse never import torch.
"""

from __future__ import annotations

import sys

if (
    sys.argv[:1] == ["-m"]  # while `python -m` looks for the module
    and sys.orig_argv[-len(sys.argv)].partition(".")[0] == "torchft_x"
    and not getattr(sys.flags, "safe_path", False)
):
    del sys.path[0]  # the user's current directory, whose queue.py or secrets.py would shadow the standard library's

import importlib
from typing import Any

from torchft_x._version import __version__

_LAZY = {
    "Manager": "torchft_x.train.manager",
    "WorldSizeMode": "torchft_x.core.heal",
    "DistributedDataParallel": "torchft_x.train.ddp.wrapper",
    "HybridShardedDataParallel": "torchft_x.train.ddp.hsdp",
    "LocalSGD": "torchft_x.train.local.local_sgd",
    "DiLoCo": "torchft_x.train.local.diloco",
    "Island": "torchft_x.train.local.islands",
    "Checkpoint": "torchft_x.train.checkpoint.checkpoint",
    "ShardedState": "torchft_x.train.ddp.sharded_state",
    "Optimizer": "torchft_x.train.optim",
    "Leaving": "torchft_x.train.leaving",
    "StepLog": "torchft_x.observe.export.step_log",
    "exit_code": "torchft_x.train.setup.excepthook",
    "defer_compiler_import": "torchft_x.train.lazy_compiler",
    "DistributedSampler": "torchft_x.train.distributed_sampler",
    "ElasticLoader": "torchft_x.train.elastic.loader",
    "ElasticSampler": "torchft_x.train.elastic.sampler",
    "ElasticEvaluator": "torchft_x.train.elastic.evaluator",
    "ElasticStreams": "torchft_x.train.elastic.streams",
    "describe_data": "torchft_x.train.context.data_digest",
    "local_device": "torchft_x.train.device",
    "process_group_for": "torchft_x.train.device",
    "ProcessGroupGloo": "torchft_x.comm",
    "ProcessGroupDummy": "torchft_x.comm",
    "allreduce_quantized": "torchft_x.comm.quantized.collectives",
    "reduce_scatter_quantized": "torchft_x.comm.quantized.collectives",
    "ParameterServer": "torchft_x.train.parameter_server",
    "ProcessGroupNCCL": "torchft_x.comm",
    "ProcessGroupXCCL": "torchft_x.comm",
    "ProcessGroupBabyGloo": "torchft_x.comm",
    "ProcessGroupBabyNCCL": "torchft_x.comm",
    "ProcessGroupBabyXCCL": "torchft_x.comm",
    "ErrorSwallowingProcessGroupWrapper": "torchft_x.comm",
    "FakeProcessGroupWrapper": "torchft_x.comm",
    "ManagedProcessGroup": "torchft_x.comm",
    "ReconfigureOptions": "torchft_x.comm",
    "ft_init_device_mesh": "torchft_x.comm.wrappers.device_mesh",
    "HTTPTransport": "torchft_x.transfer",
    "PGTransport": "torchft_x.transfer",
    "FsspecTransport": "torchft_x.transfer.storage",
    "register_leaf": "torchft_x.transfer",
    "LighthouseServer": "torchft_x.rpc.coordination",
    "LighthouseClient": "torchft_x.rpc.coordination",
    "ManagerServer": "torchft_x.rpc.coordination",
    "ManagerClient": "torchft_x.rpc.coordination",
    # For users' own components (docs/write_a_component.md).
    "ft_app": "torchft_x.launch.job.build",
    "ExtraRole": "torchft_x.launch.job.job",
}

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torchft_x' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
