"""Quantised collectives: what comes out, what goes over the wire, and what a failure looks like."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from tests.torch.comm.members import configure, each, several
from tests.torch.train.fakes import gloo_groups, run_threads
from tests.util import scaled
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.phased_work import PhasedWork
from torchft_x.comm.quantized import collectives
from torchft_x.comm.quantized.collectives import (
    agree,
    allocate_reduce_scatter_output,
    allreduce_quantized,
    reduce_quantized,
    reduce_scatter_quantized,
)
from torchft_x.comm.quantized.flat_view import get_padded_sizes
from torchft_x.comm.quantized.format import FORMATS, INT4, INT8, Format, decode, encode, residual
from torchft_x.comm.wrappers.process_groups import FakeProcessGroupWrapper, ProcessGroupDummy, ProcessGroupWrapper
from torchft_x.errors import CollectiveError, ConfigError

Meeting = Callable[[], str]
T = TypeVar("T")


class Counting(ProcessGroupWrapper):
    """Counts the bytes that go to other members."""

    sent = 0

    def _issue(self, op: str, *args: Any) -> Work:
        assert op == "alltoall_base", op
        sizes = list(args[3]) or [args[1].numel() // self.size()] * self.size()
        self.sent += (sum(sizes) - sizes[self.rank()]) * args[1].element_size()
        return super()._issue(op, *args)


@contextmanager
def members(size: int, meeting: Meeting) -> Iterator[list[Counting]]:
    with several(size, lambda: Counting(ProcessGroupGloo(scaled(20.0), host="127.0.0.1"))) as groups:
        configure(groups, meeting(), 1)
        yield groups


def on_all(size: int, meeting: Meeting, run: Callable[[int, Counting], T]) -> list[T]:
    with members(size, meeting) as groups:
        return each(groups, run)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "CHUNK", 1 << 10)


def given(rank: int) -> list[torch.Tensor]:
    """Tensors of many shapes, strides and dtypes, with values that differ from rank to rank."""
    g = torch.Generator().manual_seed(100 + rank)
    return [
        torch.randn(300, 70, generator=g),
        torch.randn(5, generator=g).bfloat16(),
        torch.randn(0),
        torch.randn(7, 90, generator=g).half().t(),
        torch.randn((), generator=g).double(),
        torch.zeros(200),
        torch.randn(3, 4, 6, 5, generator=g).to(memory_format=torch.channels_last),
        torch.randn(33, 2, generator=g)[:, 1],
    ]


def expected(inputs: list[torch.Tensor], fmt: Format) -> torch.Tensor:
    """The same from whole tensors: what each member sends, summed, and encoded once more share by share."""
    world, total = len(inputs), torch.zeros(inputs[0].numel())
    for x in inputs:
        total += decode(encode(x, fmt), x.numel(), fmt)
    shares = []
    for chunk_sum in total.split(collectives.CHUNK):
        blocks = -(-chunk_sum.numel() // fmt.block)
        for r in range(world):
            share = chunk_sum[blocks * r // world * fmt.block : blocks * (r + 1) // world * fmt.block]
            shares.append(decode(encode(share, fmt), share.numel(), fmt))
    return torch.cat(shares)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("fmt", [INT8, INT4], ids=str)
def test_the_sum_is_that_of_the_phases_done_by_hand(
    size: int, fmt: Format, meeting: Meeting, small_chunks: None
) -> None:
    inputs = [torch.randn(3000, generator=torch.Generator().manual_seed(r)) for r in range(size)]

    def run(rank: int, group: Counting) -> torch.Tensor:
        t = inputs[rank].clone().view(30, 100)
        assert allreduce_quantized([t], ReduceOp.SUM, group, quantize=fmt.name).wait()
        return t.view(-1)

    for got in on_all(size, meeting, run):
        assert torch.equal(got, expected(inputs, fmt))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("fmt", [INT8, INT4], ids=str)
def test_what_is_left_out_is_told(size: int, fmt: Format, meeting: Meeting, small_chunks: None) -> None:
    """By each member bit for bit what `residual` says, plus, where it reduces, what is missing of the sum."""
    inputs = [torch.randn(3000, generator=torch.Generator().manual_seed(r)) for r in range(size)]

    def run(rank: int, group: Counting) -> tuple[torch.Tensor, torch.Tensor]:
        t, lost = inputs[rank].clone(), torch.zeros(3000)
        reduce_quantized([t], fmt, group, lost=lost).wait()
        return t, lost

    with members(size, meeting) as groups:
        results = each(groups, run)
        with pytest.raises(ConfigError, match="`lost` must be float32, flat, of 3000 values"):
            reduce_quantized([inputs[0].clone()], fmt, groups[0], lost=torch.zeros(30, 100))
    whole, missing = sum(inputs), sum(lost for _, lost in results)
    torch.testing.assert_close(results[0][0] + missing, whole, atol=2e-6, rtol=0)
    as_said = torch.stack([lost == residual(x, fmt) for (_, lost), x in zip(results, inputs, strict=True)])
    assert (as_said.sum(0) >= size - 1).all()  # everybody but who reduces the value


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_any_shape_stride_and_dtype(size: int, meeting: Meeting, small_chunks: None) -> None:
    def run(rank: int, group: Counting) -> list[torch.Tensor]:
        tensors = given(rank)
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp.AVG
        future = allreduce_quantized(tensors, options, group).get_future()
        assert future.wait() == tensors
        return tensors

    results = on_all(size, meeting, run)
    inputs = [given(rank) for rank in range(size)]
    for i, first in enumerate(results[0]):
        for tensors in results:
            assert torch.equal(tensors[i], first)
            assert tensors[i].stride() == inputs[0][i].stride()
            assert tensors[i].dtype == inputs[0][i].dtype
        exact = torch.stack([x[i].double() for x in inputs]).mean(0)
        # one block may hold the end of one tensor and the start of the next, so the bound is that of all values
        assert first.numel() == 0 or (first.double() - exact).abs().max() < 2 * 0.005 * 4.5


def test_complex_values(meeting: Meeting) -> None:
    def run(rank: int, group: Counting) -> torch.Tensor:
        t = torch.tensor([1 + 2j, 3 - 1j, 0.5j]) * (rank + 1)
        allreduce_quantized([t], ReduceOp.SUM, group).wait()
        return t

    for t in on_all(2, meeting, run):
        assert torch.allclose(t, torch.tensor([3 + 6j, 9 - 3j, 1.5j]), atol=0.1)


def test_a_nan_of_one_member_is_a_nan_of_all(meeting: Meeting) -> None:
    def run(rank: int, group: Counting) -> torch.Tensor:
        t = torch.ones(1000)
        t[{1: 700, 2: 5}.get(rank, 0)] = {1: float("nan"), 2: float("inf")}.get(rank, 1.0)
        allreduce_quantized([t], ReduceOp.SUM, group).wait()
        return t

    for t in on_all(3, meeting, run):
        assert t[700].isnan()
        assert t[5].isnan()
        assert {i // 128 for i in t.isnan().nonzero().flatten().tolist()} == {0, 5}


# --- the wire -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "share"), [(INT8, 0.26), (INT4, 0.135)], ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_on_the_wire(fmt: Format, share: float, size: int, meeting: Meeting, small_chunks: None) -> None:
    """Against a ring all-reduce of float32; a vector costs what a matrix does (the peer's vectors cost eight times as much)."""
    n = 20_000
    ring = 2 * (size - 1) / size * 4 * n

    def run(shape: tuple[int, ...]) -> Callable[[int, Counting], float]:
        def body(_rank: int, group: Counting) -> float:
            group.sent, sent = 0, []
            reduce_quantized([torch.randn(shape)], fmt, group, sent=sent.append).wait()
            assert sum(sent) == group.sent
            return group.sent

        return body

    with members(size, meeting) as groups:
        flat, square = (sum(each(groups, run(shape))) for shape in ((n,), (n // 100, 100)))
    assert flat == square
    assert flat / (size * ring) <= share


def test_a_few_values_are_not_inflated(meeting: Meeting) -> None:
    def run(_rank: int, group: Counting) -> int:
        allreduce_quantized([torch.randn(0), torch.randn(3, 0)], ReduceOp.SUM, group).wait()
        allreduce_quantized([], ReduceOp.SUM, group).wait()
        assert group.sent == 0
        allreduce_quantized([torch.randn(3)], ReduceOp.SUM, group).wait()
        return group.sent

    sent = on_all(5, meeting, run)
    assert sum(sent) == 2 * 4 * INT8.nbytes(3)  # to the one that reduces them, and back


# --- reduce-scatter -------------------------------------------------------------------------------------------------------


def test_padded_sizes() -> None:
    sizes = get_padded_sizes([torch.zeros(7, 5), torch.zeros(8, 2, 3), torch.zeros(7), torch.zeros(())], 4)
    assert [tuple(s) for s in sizes] == [(8, 5), (8, 2, 3), (8, 1), (4, 1)]


def test_outputs_hold_a_part_of_each_input() -> None:
    out, sizes = allocate_reduce_scatter_output([torch.zeros(7, 5).bfloat16(), torch.zeros(7).bfloat16()], 2)
    assert (tuple(out.shape), out.dtype) == ((8 // 2 * 5 + 8 // 2,), torch.bfloat16)
    assert sizes == [torch.Size((8, 5)), torch.Size((8, 1))]
    with pytest.raises(ConfigError, match="one dtype"):
        allocate_reduce_scatter_output([torch.zeros(1), torch.zeros(1).half()], 2)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_reduce_scatter(size: int, op: str, meeting: Meeting, small_chunks: None) -> None:
    def inputs(rank: int) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(rank)
        return [torch.randn(71, 30, generator=g), torch.randn(5, generator=g), torch.randn(30, 4, generator=g).t()]

    def run(rank: int, group: Counting) -> torch.Tensor:
        out, _ = allocate_reduce_scatter_output(inputs(rank), size)
        assert reduce_scatter_quantized(out, inputs(rank), getattr(ReduceOp, op), group).wait()
        return out

    outputs = on_all(size, meeting, run)
    for i, padded in enumerate(get_padded_sizes(inputs(0), size)):
        whole = torch.zeros(padded)
        for rank in range(size):
            x = inputs(rank)[i]
            whole[: x.shape[0]] += x.view(-1, 1) if x.dim() == 1 else x
        if op == "AVG":
            whole /= size
        before = sum(s.numel() for s in get_padded_sizes(inputs(0)[:i], size)) // size
        for rank, out in enumerate(outputs):
            want = whole.chunk(size)[rank].reshape(-1)
            assert torch.allclose(out[before : before + want.numel()], want, atol=0.02 * size)


# --- several at once, and failures ----------------------------------------------------------------------------------------


def test_several_are_under_way_at_once_and_beside_others(meeting: Meeting, small_chunks: None) -> None:
    def run(rank: int, group: Counting) -> list[torch.Tensor]:
        tensors = [torch.full((5000,), float(rank + k)) for k in range(4)]
        works = [allreduce_quantized([t], ReduceOp.SUM, group) for t in tensors[:2]]
        plain = group.parent.allreduce([tensors[2]])
        works.append(allreduce_quantized([tensors[3]], ReduceOp.SUM, group))
        assert not works[0].is_completed()
        for work in (works[0], plain, *works[1:]):
            assert work.wait()
        assert works[0].is_completed()
        return tensors

    with members(3, meeting) as groups:
        for tensors in each(groups, run):
            for k, t in enumerate(tensors):
                assert torch.allclose(t, torch.full((5000,), 3.0 + 3 * k), rtol=0.02)


def test_a_lost_member_fails_the_wait_and_the_group(meeting: Meeting, small_chunks: None) -> None:
    with members(3, meeting) as groups:

        def run(rank: int, group: Counting) -> str:
            if rank == 2:
                group.abort()
                return ""
            work = allreduce_quantized([torch.ones(100_000)], ReduceOp.SUM, group)
            with pytest.raises(CollectiveError) as first:
                work.wait()
            with pytest.raises(CollectiveError):
                work.wait()
            assert work.is_completed()
            with pytest.raises(CollectiveError):
                work.get_future().value()
            assert group.errored() is not None
            return str(first.value)

        assert all("alltoall_base" in text for text in each(groups, run)[:2])


def test_the_limit_of_a_phase_needs_not_grow_with_the_tensor(meeting: Meeting, small_chunks: None) -> None:
    """A member that is slow and not silent is waited for, chunk after chunk."""
    limit = scaled(0.3)

    def run(rank: int, group: Counting) -> float:
        began = time.monotonic()
        work = reduce_quantized(
            [torch.ones(10 << 10)], INT8, group, sent=lambda nbytes: time.sleep(limit / 4 if rank else 0.0)
        )
        assert isinstance(work, PhasedWork)
        work.wait(each=timedelta(seconds=limit))
        return time.monotonic() - began

    assert min(on_all(2, meeting, run)) > 2 * limit
    with members(2, meeting) as groups:
        work = reduce_quantized([torch.ones(100)], INT8, groups[0])
        assert isinstance(work, PhasedWork)
        with pytest.raises(CollectiveError, match="timed out after the limit"):
            work.wait(each=timedelta(seconds=0.2))
    with members(2, meeting) as groups:
        work = allreduce_quantized([torch.ones(100)], ReduceOp.SUM, groups[0])
        with pytest.raises(CollectiveError, match="timed out after the limit"):
            work.wait(timedelta(seconds=0.2))


def test_nothing_more_is_issued_among_other_members(meeting: Meeting, small_chunks: None) -> None:
    alike = True
    with members(2, meeting) as groups:

        def run(rank: int, group: Counting) -> Work:
            return reduce_quantized([torch.ones(5000)], INT8, group, still=lambda: alike)

        works = each(groups, run)
        sent = [group.sent for group in groups]
        alike = False
        for work in works:
            with pytest.raises(CollectiveError, match="got other members meanwhile"):
                work.wait()
        assert [group.sent for group in groups] == sent


def test_a_failure_before_the_start_is_told_by_the_wait() -> None:
    group = FakeProcessGroupWrapper(ProcessGroupDummy())
    group.report_future_error(RuntimeError("injected"))
    work = allreduce_quantized([torch.ones(3)], ReduceOp.SUM, group)
    with pytest.raises(RuntimeError, match="injected"):
        work.wait()


def test_what_cannot_be_reduced_so_is_refused_before_anything_is_sent() -> None:
    group = Counting(ProcessGroupDummy())
    for tensors, op, fmt, what in [
        ([torch.ones(1)], ReduceOp.MAX, "int8", "only SUM and AVG"),
        ([torch.ones(1), torch.ones(1).int()], ReduceOp.SUM, "int8", "can't be quantised"),
        ([torch.ones(1)], ReduceOp.SUM, "fp8", "fp8 needs a CUDA device"),
        ([torch.ones(1)], ReduceOp.SUM, "int3", "should_quantize"),
        ([torch.ones(1)], ReduceOp.SUM, False, "full precision"),
        ([torch.ones(1), torch.ones(1, device="meta")], ReduceOp.SUM, "int8", "on one device"),
    ]:
        with pytest.raises(ConfigError, match=what):
            allreduce_quantized(tensors, op, group, quantize=fmt)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="allocate_reduce_scatter_output"):
        reduce_scatter_quantized(torch.empty(3), [torch.ones(7)], ReduceOp.SUM, group)
    assert group.sent == 0


def test_a_sum_is_scaled_before_it_is_written_again() -> None:
    """So that what is sent is the tensor itself, and `residual` is what got lost of it."""
    t = torch.randn(500)
    want = decode(encode(decode(encode(t, INT4), 500, INT4) * 0.25, INT4), 500, INT4)
    reduce_quantized([t], INT4, ProcessGroupDummy(), 0.25).wait()
    assert torch.equal(t, want)


@pytest.mark.gpu(1)
@pytest.mark.parametrize("fmt", [INT8, INT4], ids=str)
def test_a_gpu_leaves_out_what_a_cpu_does(fmt: Format) -> None:
    found = []
    for device in ("cpu", "cuda"):
        t = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).to(device)
        lost = torch.zeros_like(t)
        reduce_quantized([t], fmt, ProcessGroupDummy(), lost=lost).wait()
        found.append((t.cpu(), lost.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def heard(*members: str) -> list[str]:
    """What each is told; a name in brackets is of one that heals."""
    groups = gloo_groups(len(members))

    def body(r: int) -> str:
        name = members[r].strip("()")
        try:
            agree(groups[r], FORMATS[name], torch.device("cpu"), contributes=members[r] == name)
        except (ConfigError, CollectiveError) as e:
            return f"{type(e).__name__}: {e}"
        return ""

    return run_threads(len(members), body)


def test_members_that_agree_are_told_nothing() -> None:
    assert heard("int4", "int4", "(int4)") == [""] * 3
    assert heard("int8") == [""]


@pytest.mark.parametrize(
    ("members", "kinds"),
    [
        (("int8", "int4", "int8"), "col Con col"),
        (("int8", "int4", "int4"), "col Con Con"),
        (("(int4)", "int8", "int8"), "Con col col"),  # a newcomer ends nobody but itself, whatever its rank
        (("(fp8)", "(int8)"), "col Con"),
    ],
)
def test_who_reduces_otherwise_than_the_first_that_contributes_must_end(members: tuple[str, ...], kinds: str) -> None:
    told = heard(*members)
    assert [t[:3] for t in told] == [{"col": "Col", "Con": "Con"}[k] for k in kinds.split()]
    right = next((m for m in members if "(" not in m), members[0]).strip("()")
    for t in told:
        if t.startswith("Con"):
            assert f"in '{right}'; use one format" in t
        else:
            assert t.startswith(f"CollectiveError: this group quantises in '{right}', and rank")
