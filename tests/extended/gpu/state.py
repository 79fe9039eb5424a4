"""Checks of quantised reductions and snapshots of tensors on a card."""

from __future__ import annotations

import time

import torch
from torch.distributed import ReduceOp

from tests.extended.gpu.kit import Figures, Kit, need, need_equal
from tests.torch.comm.members import each
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.quantized.collectives import allreduce_quantized
from torchft_x.comm.quantized.format import FORMATS, FP8, Format, decode, encode, has_fp8, residual
from torchft_x.core.types import State
from torchft_x.transfer.snapshot import SnapshotStore

SIZES = (1, 3, 127, 128, 129, 100_003)


def quantised_kernels(kit: Kit) -> Figures:
    """Check that the device's int8 and int4 bytes equal the CPU's.

    fp8, which the CPU doesn't support, is compared with its own definition.
    """
    for fmt in FORMATS.values():
        if fmt is FP8 and not has_fp8(kit.device):
            kit.figures["not tried"] = ["fp8 needs a CUDA device of compute capability 8.9 or newer"]
            continue
        for numel in SIZES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = (kit.tensor(numel, seed=numel) * 3).to(dtype)
                _compare(fmt, x, f"{fmt} of {numel} {dtype}")
        for x in (torch.zeros(500), torch.full((500,), 1e-30), torch.full((500,), 3e38), torch.arange(500.0) - 250):
            _compare(fmt, x.to(kit.device), f"{fmt} of {x[0]:g} ...")
        _time(kit, fmt)
    return kit.figures


def _time(kit: Kit, fmt: Format) -> None:
    large = kit.tensor(1 << (20 if kit.on_cpu else 26))
    codes = encode(large, fmt)
    took = kit.seconds(lambda: encode(large, fmt), 3)
    kit.figures[f"{fmt} encode, GB/s"] = round(large.nbytes / took / 1e9, 2)
    took = kit.seconds(lambda: decode(codes, large.numel(), fmt), 3)
    kit.figures[f"{fmt} decode, GB/s"] = round(large.nbytes / took / 1e9, 2)


def _compare(fmt: Format, x: torch.Tensor, what: str) -> None:
    codes = encode(x, fmt)
    values = decode(codes, x.numel(), fmt)
    if fmt is not FP8:
        on_cpu = encode(x.cpu(), fmt)
        need_equal(codes, on_cpu, f"{what}: codes")
        need_equal(values, decode(on_cpu, x.numel(), fmt), f"{what}: values")
        need_equal(residual(x, fmt), residual(x.cpu(), fmt), f"{what}: residual")
        return
    wide = x.float()
    need_equal(residual(x, fmt), wide - values, f"{what}: residual")
    blocks = torch.nn.functional.pad(wide.abs(), (0, -x.numel() % fmt.block)).view(-1, fmt.block)
    limit = (blocks.amax(1) / 16 + 1e-30).repeat_interleave(fmt.block)[: x.numel()]
    need(bool(((wide - values).abs() <= limit).all()), f"{what}: off by more than 1/16 of the block's largest")


def quantised_reductions(kit: Kit) -> Figures:
    """Check that three members on one card hold the same bits, near the sum, and those of the CPU for int8 and int4."""
    size, numel = 3, 300_001
    with kit.gloo_groups(size) as groups:
        for fmt in FORMATS.values():
            if fmt is FP8 and not has_fp8(kit.device):
                kit.figures["not tried"] = ["fp8"]
                continue
            here = each(groups, lambda rank, group, fmt=fmt: _reduced(group, kit.tensor(numel, seed=rank), fmt))
            for t in here[1:]:
                need_equal(t, here[0], f"{fmt}: members differ")
            reference = sum(kit.tensor(numel, seed=rank).cpu() for rank in range(size))
            off = (here[0].cpu() - reference).abs().max().item()
            kit.figures[f"{fmt}: largest error of a sum"] = round(off, 4)
            need(off < {"int8": 0.3, "int4": 4.0, "fp8": 1.5}[fmt.name], f"{fmt}: off by {off:g}")
            if fmt is not FP8 and not kit.on_cpu:
                there = each(groups, lambda rank, g, fmt=fmt: _reduced(g, kit.tensor(numel, seed=rank).cpu(), fmt))
                need_equal(here[0], there[0], f"{fmt}: the device's sum is not the CPU's")
    return kit.figures


def _reduced(group: ProcessGroup, t: torch.Tensor, fmt: Format) -> torch.Tensor:
    stream = None if t.device.type == "cpu" else torch.cuda.Stream(t.device)
    allreduce_quantized([t], ReduceOp.SUM, group, stream, quantize=fmt.name).wait()
    return t


def staging(kit: Kit) -> Figures:
    """Check that a snapshot holds the state of the moment of the call, and waits only for the stream of that state."""
    store = SnapshotStore()
    state = {"w": kit.tensor(1 << 22), "half": kit.tensor(1 << 20, seed=1).bfloat16(), "step": 7}
    want = {name: t.cpu().clone() for name, t in state.items() if isinstance(t, torch.Tensor)}
    store.prepare(state)
    for _ in range(3):  # allocate pinned memory now, as a later allocation would wait for the device
        store.freeze(State(1, 1), state, 0)
    other = None if kit.on_cpu else torch.cuda.Stream()
    if other is not None:
        with torch.cuda.stream(other):
            torch.cuda._sleep(int(3e9))  # more than a second of work that is unrelated to the state
    began = time.perf_counter()
    snapshot = store.freeze(State(2, 1), state, 0)
    took = time.perf_counter() - began
    state["w"].add_(1)  # as the next step would
    kit.figures["snapshot of 18 MiB, s"] = round(took, 4)
    kit.figures["GB/s"] = round(sum(t.nbytes for t in want.values()) / took / 1e9, 2)
    whole = b"".join(bytes(snapshot.block(i)) for i in range(len(snapshot.blocks)))
    for name, t in want.items():
        raw = bytes(t.contiguous().view(torch.uint8).numpy().tobytes())
        need(raw in whole, f"the snapshot does not hold the bytes of {name!r}")
    if other is None:
        return kit.figures
    need(snapshot.buffer.is_pinned(), "the snapshot's memory is not pinned")
    need(not other.query(), "the snapshot waited for another stream's work")
    other.synchronize()
    return kit.figures
