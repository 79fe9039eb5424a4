"""All-reduce and reduce-scatter with fewer bits per value on the wire (`torchft_x.comm.quantized.format`).

All tensors of a call are one sequence of values. It is cut into chunks, and each chunk of an all-reduce passes these
phases::

    encode      each member encodes the chunk, cut into one share per member
    exchange    all-to-all: member r receives share r of every member
    reduce      it sums them up in float32, in the order of ranks, scales the sum, and encodes it again
    gather      all-to-all: every member receives every reduced share
    decode      every member decodes the same bytes, its own included: results are bit-identical

A reduce-scatter ends with the third phase, which then writes float32 instead of codes. While some chunks travel,
others are encoded, reduced and decoded. `AHEAD` chunks are sent before the first is awaited, and a chunk is decoded
`BEHIND` chunks after it was reduced. So five transfers are in flight whenever this thread waits or is descheduled.
Beside the tensors about 3 bytes are needed per value of six chunks, independent of the tensors' size.

Bytes that a member sends per value: 2 (n-1)/n times those of the format; a ring all-reduce of float32 has 2 (n-1)/n
times 4.

``wait()`` (or ``get_future()``) drives the phases after the first exchange, on its caller's thread. All members issue
the same collectives in the same order if they issue *and wait* in the same order. A background thread would
interleave them with other collectives of the group. On CUDA with NCCL, where waiting costs the host nothing, all
phases are issued at once.

Names, arguments and meaning are those of torchft (``torchft.collectives``), whose implementation needs triton, a GPU
and matrices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, Work

from torchft_x.comm.base import reduce_op_of
from torchft_x.comm.phased_work import Phases, start
from torchft_x.comm.quantized.flat_view import FlatView, get_padded_sizes, parts_of
from torchft_x.comm.quantized.format import Format, check, decode, encode, format_of
from torchft_x.errors import CollectiveError, ConfigError

CHUNK = 1 << 20
"""Values of a chunk: 1 MiB of int8. A multiple of every block, the same on all members. With 4 MiB less of the coding
is hidden behind the network, with 0.5 MiB nothing was gained (4 million values, two members, 100 Mbit/s and 1
Gbit/s).
"""
_WORD = 8  # bytes: one flag whether the member contributes, and the format's name, padded with zeros
AHEAD = 3  # chunks sent before the first is awaited (see the module)
BEHIND = 2


def allreduce_quantized(
    tensors: list[Tensor], opts: Any, pg: Any, sync_stream: torch.Stream | None = None, *, quantize: bool | str = True
) -> Work:
    """Sum or average `tensors` over the members of `pg`, in place. The results are bit-identical on all members.

    Args:
        tensors: floating or complex, of any shape, stride and mixture of dtypes, on one device; the same shapes on
            all members. One that isn't contiguous is copied whole. Values of float64 are rounded to float32 first.
        opts: AllreduceOptions or a ReduceOp; SUM or AVG.
        pg: a process group of torchft_x, or any with ``alltoall_base``.
        sync_stream: a stream to work on, beside the current one. ``wait()`` makes the current stream wait for it.
        quantize: True, or the name of a format. It must be the same on all members: else gloo ends the process.

    Wait before `pg` is configured anew. After a failure the tensors may be partly overwritten. Raises `ConfigError`
    for tensors, operations or formats that can't be reduced like this.
    """
    op = _sum_or_avg(opts)
    return reduce_quantized(tensors, _format(quantize), pg, 1.0 / pg.size() if op == ReduceOp.AVG else 1.0, sync_stream)


def reduce_quantized(
    tensors: Sequence[Tensor],
    fmt: Format,
    pg: Any,
    scale: float = 1.0,
    sync_stream: torch.Stream | None = None,
    *,
    lost: Tensor | None = None,
    sent: Callable[[int], None] | None = None,
    still: Callable[[], bool] = lambda: True,
) -> Work:
    """Sum `tensors` as `allreduce_quantized` does, times `scale`.

    Each member sends ``encode`` of its tensors as they are, so `torchft_x.comm.quantized.format.residual` returns
    their quantisation error.

    Args:
        tensors: as in `allreduce_quantized`.
        fmt: the same on all members.
        pg: as in `allreduce_quantized`.
        scale: the same on all members; applied in float32 before the second encoding.
        sync_stream: as in `allreduce_quantized`.
        lost: flat, float32, as many values as the tensors, on their device. This member's quantisation error is added
            to it: of its own values (bit for bit `residual`), and of the sum where it reduces. So, if `scale` is 1,
            the result is the sum minus the additions of all members. Complete after the wait.
        sent: called with the number of bytes that go to other members, by the thread that drives the work.
        still: returns whether `pg` has the members with which the call began. If not, nothing more is issued, and the
            wait fails: among other members the sizes would be wrong.
    """
    _check_all(tensors, fmt)
    with torch.no_grad():
        run = FlatView(tensors)
        if lost is not None and (
            lost.dtype != torch.float32 or lost.shape != (run.numel,) or lost.device != run.device
        ):
            raise ConfigError(f"`lost` must be float32, flat, of {run.numel} values, on {run.device}.")
        phases = _allreduce(run, fmt, pg, scale, lost, sent)
        return start(phases, list(tensors), pg, sync_stream, still)


def reduce_scatter_quantized(
    output: Tensor,
    inputs: list[Tensor],
    opts: Any,
    pg: Any,
    sync_stream: torch.Stream | None = None,
    *,
    quantize: bool | str = True,
) -> Work:
    """Sum or average `inputs` over the members. Each member receives its part of the rows of each input.

    Args:
        output: from `allocate_reduce_scatter_output`: flat, the parts of all inputs one after the other.
        inputs: each is padded with rows of zeros (`get_padded_sizes`), then cut along its first dimension into as
            many equal parts as `pg` has members.
        opts: ReduceScatterOptions or a ReduceOp; SUM or AVG.
        pg: as in `allreduce_quantized`, like the errors.
        sync_stream: as in `allreduce_quantized`.
        quantize: as in `allreduce_quantized`.
    """
    op, fmt = _sum_or_avg(opts), _format(quantize)
    _check_all([*inputs, output], fmt)
    world = pg.size()
    wanted = sum(size.numel() for size in get_padded_sizes(inputs, world)) // world
    if output.numel() != wanted or not output.is_contiguous():
        raise ConfigError(
            f"the output has {output.numel()} values where {wanted} belong, or has gaps; make it with "
            "allocate_reduce_scatter_output(inputs, pg.size())."
        )
    with torch.no_grad():
        runs = [FlatView(part) for part in parts_of(inputs, world)]
        scale = 1.0 / world if op == ReduceOp.AVG else 1.0
        return start(_reduce_scatter(FlatView([output]), runs, fmt, pg, scale), [output], pg, sync_stream)


def allocate_reduce_scatter_output(tensors: list[Tensor], world_size: int) -> tuple[Tensor, list[torch.Size]]:
    """Return a flat, uninitialised output for `reduce_scatter_quantized` of these inputs, and their padded sizes.

    Raises `ConfigError` if the tensors differ in dtype or device, or there are none.
    """
    kinds = {(t.dtype, t.device) for t in tensors}
    if len(kinds) != 1:
        raise ConfigError(f"inputs of one dtype on one device are needed, and these have {len(kinds)}: {kinds}.")
    sizes = get_padded_sizes(tensors, world_size)
    numel = sum(size.numel() for size in sizes) // world_size
    return torch.empty(numel, dtype=tensors[0].dtype, device=tensors[0].device), sizes


# --- checks of arguments ----------------------------------------------------------------------------------------------


def check_quantized(tensor: Tensor, fmt: Format, op: Any) -> None:
    """Raise `ConfigError` if `tensor` can't be reduced with `op` in this format."""
    check(tensor, fmt)
    _sum_or_avg(op)


def _sum_or_avg(opts: Any) -> Any:
    op = reduce_op_of(opts)
    if not (
        op == ReduceOp.SUM or op == ReduceOp.AVG
    ):  # not `in`: ReduceOp's == works from this side only, if the operation comes from options
        raise ConfigError(
            f"{getattr(op, 'op', op)} can't be quantised, only SUM and AVG can; leave should_quantize out."
        )
    return op


def _format(quantize: bool | str) -> Format:
    fmt = format_of(quantize)
    if fmt is None:
        raise ConfigError(f"quantize={quantize!r} asks for full precision; call the group's own collective for that.")
    return fmt


def _check_all(tensors: Sequence[Tensor], fmt: Format) -> None:
    for tensor in tensors:
        check(tensor, fmt)
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise ConfigError(f"the tensors of one call are on {', '.join(map(str, devices))}; put them on one device.")


# --- phases: generators of the works to wait for ----------------------------------------------------------------------


def _allreduce(
    run: FlatView, fmt: Format, pg: Any, scale: float, lost: Tensor | None = None,
    sent: Callable[[int], None] | None = None,
) -> Phases:  # fmt: skip
    rank, world = pg.rank(), pg.size()
    chunks = [_cut(first, min(first + CHUNK, run.numel), world, fmt) for first in range(0, run.numel, CHUNK)]

    def exchange(k: int) -> tuple[Work, Tensor]:
        """Send each member its share of chunk `k`, and receive our share from each."""
        shares = list(pairwise(chunks[k]))
        sizes = [fmt.nbytes(b - a) for a, b in shares]
        send = _bytes(sum(sizes), run.device)
        for (a, b), part in zip(shares, send.split(sizes), strict=True):
            encode(run.read(a, b), fmt, part, lost=None if lost is None else lost[a:b])
        received = _bytes(sizes[rank] * world, run.device)
        return _all_to_all(pg, received, send, [sizes[rank]] * world, sizes, sent), received

    def gather(k: int, received: Tensor) -> tuple[Work, Tensor]:
        """Reduce our share of chunk `k` and send it to all members."""
        a, b = chunks[k][rank], chunks[k][rank + 1]
        sizes = [fmt.nbytes(d - c) for c, d in pairwise(chunks[k])]
        total = _reduced(received, b - a, fmt, scale)
        mine = encode(total, fmt, lost=None if lost is None else lost[a:b])
        whole = _bytes(sum(sizes), run.device)
        return _all_to_all(pg, whole, mine.repeat(world), sizes, [sizes[rank]] * world, sent), whole

    def finish(k: int, whole: Tensor) -> None:
        sizes = [fmt.nbytes(b - a) for a, b in pairwise(chunks[k])]
        for (a, b), part in zip(pairwise(chunks[k]), whole.split(sizes), strict=True):
            run.write(a, b, part, fmt)

    exchanged: deque[tuple[Work, Tensor]] = deque()  # in flight, in the order of chunks
    gathered: deque[tuple[Work, Tensor]] = deque()
    for k in range(min(AHEAD, len(chunks))):
        exchanged.append(exchange(k))
    for k in range(len(chunks) + BEHIND):
        if k + AHEAD < len(chunks):
            exchanged.append(exchange(k + AHEAD))
        if k < len(chunks):
            work, received = exchanged.popleft()
            yield work
            gathered.append(gather(k, received))
        if k >= BEHIND and gathered:
            work, whole = gathered.popleft()
            yield work
            finish(k - BEHIND, whole)
    run.close()


def _reduce_scatter(out: FlatView, runs: Sequence[FlatView], fmt: Format, pg: Any, scale: float) -> Phases:
    """Run the phases of a reduce-scatter. `runs` are the values for each rank, in the order of ranks."""
    world = pg.size()
    step = max(CHUNK // world // fmt.block, 1) * fmt.block
    chunks = [(first, min(first + step, out.numel)) for first in range(0, out.numel, step)]

    def exchange(a: int, b: int) -> tuple[Work, Tensor]:
        size = fmt.nbytes(b - a)
        send = _bytes(size * world, out.device)
        for run, part in zip(runs, send.split(size), strict=True):
            encode(run.read(a, b), fmt, part)
        received = torch.empty_like(send)
        return _all_to_all(pg, received, send, [size] * world, [size] * world), received

    ahead = [exchange(*chunks[0])] if chunks else []
    for k, (a, b) in enumerate(chunks):
        if k + 1 < len(chunks):
            ahead.append(exchange(*chunks[k + 1]))
        work, received = ahead.pop(0)
        yield work
        out.put(a, b, _reduced(received, b - a, fmt, scale))
    out.close()


def _cut(first: int, end: int, world: int, fmt: Format) -> list[int]:
    """Return where each member's share begins, and where the last one ends: whole blocks, as evenly as possible."""
    blocks = fmt.num_blocks(end - first)
    return [first + blocks * r // world * fmt.block for r in range(world)] + [end]


def _reduced(received: Tensor, numel: int, fmt: Format, scale: float) -> Tensor:
    """Return the scaled sum of all members' shares, in float32."""
    total = torch.zeros(numel, dtype=torch.float32, device=received.device)
    if numel:
        for part in received.split(fmt.nbytes(numel)):
            decode(part, numel, fmt, total, add=True)
    return total if scale == 1.0 else total.mul_(scale)


def _all_to_all(
    pg: Any,
    out: Tensor,
    given: Tensor,
    out_sizes: list[int],
    sizes: list[int],
    sent: Callable[[int], None] | None = None,
) -> Work:
    if sent is not None:
        sent(sum(sizes) - sizes[pg.rank()])
    work: Work = pg.alltoall_base(out, given, out_sizes, sizes)
    return work


def _bytes(size: int, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def agree(pg: Any, fmt: Format, device: torch.device, *, contributes: bool = True) -> None:
    """Exchange formats with all members of `pg` in their first quantised call, and raise unless they agree.

    The format of the first member that contributes (one that heals doesn't) is right. A member with another format
    must end, and the others go on without it.

    Raises `ConfigError` if our format is wrong, `CollectiveError` if another member's is, and the process group's
    errors.
    """
    world, rank = pg.size(), pg.rank()
    if world < 2:
        return
    mine = torch.tensor([contributes, *fmt.name.encode().ljust(_WORD - 1, b"\0")], dtype=torch.uint8, device=device)
    words = torch.empty(_WORD * world, dtype=torch.uint8, device=device)
    sizes = [_WORD] * world
    pg.alltoall_base(words, mine.repeat(world), sizes, sizes).wait()
    rows = words.view(world, _WORD).tolist()
    names = [bytes(row[1:]).rstrip(b"\0").decode("ascii", "replace") for row in rows]
    problem = _judge(rank, names, [bool(row[0]) for row in rows])
    if problem is not None:
        raise problem


def _judge(rank: int, names: Sequence[str], contributing: Sequence[bool]) -> Exception | None:
    leader = next((r for r, does in enumerate(contributing) if does), 0)
    if names[rank] != names[leader]:
        return ConfigError(
            f"this group quantises in {names[rank]!r}, and rank {leader} of {len(names)} in {names[leader]!r}; use "
            "one format in the whole job, and say it before the first step (Manager.declare_quantization)."
        )
    wrong = [f"rank {r} in {name!r}" for r, name in enumerate(names) if name != names[leader]]
    if wrong:
        return CollectiveError(f"this group quantises in {names[rank]!r}, and {', '.join(wrong)}: it must end.")
    return None
