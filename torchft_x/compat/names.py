"""torchft's public names, module by module, with ours. Data only.

Ours is given as ``module:name`` below torchft_x. `LACKING` has torchft's names that we lack, with what to do instead.
Compared with torchft's 0.2.0 (``configure``), torchft-nightly of October 2026 (``reconfigure``), and the device mesh of
October 2025.
"""

from __future__ import annotations

from collections.abc import Mapping

ROOT = ""
"""The package itself."""

_MANAGER = {
    "Manager": "compat.adapters.manager:Manager",
    "WorldSizeMode": "core.heal:WorldSizeMode",
    "ExceptionWithTraceback": "train.context.futures:ExceptionWithTraceback",
    "_ManagedWork": "compat.adapters.work:_ManagedWork",
    "ManagerServer": "rpc.coordination:ManagerServer",
    "ManagerClient": "rpc.coordination:ManagerClient",
    "get_timeout": "compat.adapters.manager:get_timeout",
    "extract_trailing_digits": "compat.adapters.manager:extract_trailing_digits",
    "MANAGER_PORT_ENV": "env:MANAGER_PORT",
    "TIMEOUT_SEC_ENV": "env:TIMEOUT",
    "QUORUM_TIMEOUT_SEC_ENV": "env:QUORUM_TIMEOUT",
    "CONNECT_TIMEOUT_SEC_ENV": "env:CONNECT_TIMEOUT",
    "QUORUM_RETRIES_ENV": "env:QUORUM_RETRIES",
}
_COORDINATION = {
    name: f"rpc.coordination:{name}"
    for name in (
        "LighthouseClient", "LighthouseServer", "ManagerClient", "ManagerServer", "Quorum", "QuorumMember",
    )
}  # fmt: skip
_GROUPS = {
    name: f"comm:{name}"
    for name in (
        "ErrorSwallowingProcessGroupWrapper", "FakeProcessGroupWrapper", "ManagedProcessGroup", "ProcessGroup",
        "ProcessGroupBaby", "ProcessGroupBabyGloo", "ProcessGroupBabyNCCL", "ProcessGroupBabyXCCL",
        "ProcessGroupDummy", "ProcessGroupGloo", "ProcessGroupNCCL", "ProcessGroupWrapper", "ProcessGroupXCCL",
        "ReconfigureOptions", "create_store_client", "reconfigure_with_store",
    )
}  # fmt: skip
_MESH = {"ft_init_device_mesh": "comm.wrappers.device_mesh:ft_init_device_mesh"}
_TRANSPORT = {"CheckpointTransport": "transfer:CheckpointTransport"}
_HTTP = {"HTTPTransport": "compat.adapters.transports:HTTPTransport"}

TREE: Mapping[str, Mapping[str, str]] = {
    ROOT: {
        "DistributedDataParallel": "train.ddp.wrapper:DistributedDataParallel",
        "DistributedSampler": "train.distributed_sampler:DistributedSampler",
        "Manager": "compat.adapters.manager:Manager",
        "Optimizer": "train.optim:OptimizerWrapper",
        "ProcessGroupBabyNCCL": "comm:ProcessGroupBabyNCCL",
        "ProcessGroupBabyXCCL": "comm:ProcessGroupBabyXCCL",
        "ProcessGroupGloo": "comm:ProcessGroupGloo",
        "ProcessGroupNCCL": "comm:ProcessGroupNCCL",
        "ProcessGroupXCCL": "comm:ProcessGroupXCCL",
    },
    "_torchft": {
        **_COORDINATION,
        "QuorumResult": "rpc.coordination:QuorumResult",
        "Timestamp": "rpc.coordination:Timestamp",
        "lighthouse_main": "rpc.coordination:lighthouse_main",
    },
    "checkpointing": {**_HTTP, **_TRANSPORT},
    "checkpointing._rwlock": {"RWLock": "compat.adapters.rwlock:RWLock"},
    "checkpointing.http_transport": _HTTP,
    "checkpointing.pg_transport": {"PGTransport": "compat.adapters.transports:PGTransport"},
    "checkpointing.transport": _TRANSPORT,
    "collectives": {
        "allocate_reduce_scatter_output": "comm.quantized.collectives:allocate_reduce_scatter_output",
        "allreduce_quantized": "comm.quantized.collectives:allreduce_quantized",
        "get_padded_sizes": "comm.quantized.flat_view:get_padded_sizes",
        "reduce_scatter_quantized": "comm.quantized.collectives:reduce_scatter_quantized",
    },
    "coordination": _COORDINATION,
    "data": {"DistributedSampler": "train.distributed_sampler:DistributedSampler"},
    "ddp": {
        "DistributedDataParallel": "train.ddp.wrapper:DistributedDataParallel",
        "PureDistributedDataParallel": "train.ddp.wrapper:PureDistributedDataParallel",
    },
    "device_mesh": {**_MESH, "ManagedProcessGroup": "comm:ManagedProcessGroup"},
    "futures": {
        name: f"compat.adapters.futures:{name}"
        for name in ("context_timeout", "future_timeout", "future_wait", "stream_timeout", "_TIMEOUT_MANAGER")
    },
    "local_sgd": {
        "DiLoCo": "compat.adapters.local_sgd:DiLoCo",
        "LocalSGD": "compat.adapters.local_sgd:LocalSGD",
        "USE_BUCKETIZATION_ENV": "env:USE_BUCKETIZATION",
        "extract_local_tensor": "compat.adapters.local_sgd:extract_local_tensor",
    },
    "manager": _MANAGER,
    "optim": {"OptimizerWrapper": "train.optim:OptimizerWrapper"},
    "parameter_server": {"ParameterServer": "train.parameter_server:ParameterServer"},
    "process_group": {
        **_GROUPS,
        **_MESH,
        "_ErrorSwallowingWork": "comm.wrappers.process_groups:_SwallowingWork",
    },
    "torchx": {"hsdp": "components.listed:hsdp"},
    "utils": {
        name: f"compat.adapters.streams:{name}" for name in ("get_stream_context", "record_event", "synchronize")
    },
    "work": {"_DummyWork": "comm.work:DoneWork"},
}
"""Our names, by module below torchft, then by name."""

LACKING: Mapping[str, str] = {
    "checkpointing._serialization": "its streams are pickles; torchft_x.transfer sends a layout and raw bytes",
    "device_mesh.ManagedDeviceMesh": "ft_init_device_mesh makes a mesh of torch's own class",
    "device_mesh.extend_device_mesh": "ft_init_device_mesh makes a mesh of torch's own class",
    "http": "servers are torchft_x's own",
    "multiprocessing": "process groups in a child process use Python's `multiprocessing`",
    "multiprocessing_dummy_context": "it is for torchft's tests; use multiprocessing.dummy",
    "otel": "what happens is in the event log (docs/events.md); torchft_x.observe.subscribe brings events to a logger",
    "process_group.trigger_nccl_fr_trace_through_pipe": "set TORCHFT_X_FLIGHT_RECORDER (docs/process_groups.md)",
    "quantization": "its kernels are Triton's; torchft_x.compat.collectives quantises on any device",
    "torchcomms": "PyPI has a placeholder only, so it was never run by us; use ProcessGroupGloo or ProcessGroupNCCL",
}
"""Reasons, with alternatives, by module, or by module and name."""
