"""Models and optimizers that are sharded in one way, and go on in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.util import fork_server, scaled
from torchft_x.train.checkpoint import parts
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store

WAIT = scaled(60)
WIDTH = 7  # no multiple of a number of ranks


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.register_buffer("seen", torch.full((3,), float(seed)))


def make(seed: int, mesh: Any, *, tensor: bool) -> tuple[Net, torch.optim.Optimizer]:
    net = Net(seed)
    if mesh is not None:
        if tensor:
            parallelize_module(
                net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None
            )
        fully_shard(net, mesh=mesh["dp"])
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)


def train(net: Net, optim: torch.optim.Optimizer, steps: int, begin: int = 0) -> None:
    """With gradients that are the same for all ways to cut it."""
    for step in range(begin, steps):
        for i, p in enumerate(net.parameters()):
            whole = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + i))
            if hasattr(p, "placements"):
                p.grad = distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None)
            else:
                p.grad = whole
        optim.step()


Form = tuple[int, int] | None  # ranks that shard, ranks that share each layer's work; None: not sharded
FORMS: list[Form] = [None, (2, 1), (4, 1), (2, 2), (1, 3)]


def ranks_of(form: Form) -> int:
    return 1 if form is None else form[0] * form[1]


def made(form: Form, rank: int, seed: int) -> tuple[Net, torch.optim.Optimizer]:
    """On a pretended rank. Once in a process: torch keeps what it has learned of the first."""
    torch.set_num_threads(1)
    mesh = None
    if form is not None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks_of(form))
        mesh = init_device_mesh("cpu", form, mesh_dim_names=("dp", "tp"))
    return make(seed, mesh, tensor=form is not None and form[1] > 1)


def folder_of(root: str, form: Form) -> str:
    return f"{root}/{form}"


def save(root: str, form: Form, rank: int) -> None:
    store, name, ranks = Store(folder_of(root, form)), names.name(1, "a"), ranks_of(form)
    net, optim = made(form, rank, 1)
    train(net, optim, 3)
    shard = freeze(parts.gather({"model": net, "optim": optim}), step=1, rank=rank, ranks=ranks)
    writer.write_shard(store, name, shard)
    if rank == 0:
        writer.complete(store, name, shard, job="j", timeout=WAIT)


def load(root: str, form: Form, rank: int) -> None:
    """What any others have saved, and train on."""
    expected, theirs = make(1, None, tensor=False)
    train(expected, theirs, 5)
    net, optim = made(form, rank, 2)
    fresh = parts.gather({"model": net, "optim": optim})["optim"]
    for source in FORMS:
        store = Store(folder_of(root, source))
        found = newest(store)
        assert found is not None
        saved = Saved(store, found)
        optim.load_state_dict(fresh)
        with torch.no_grad():
            net.seen.zero_()
        both = {"model": net, "optim": optim}
        parts.put_back(both, saved.load(parts.places(both, saved.shapes())))
        train(net, optim, 5, 3)
        assert net.seen.sum() == 3
        for p, q in zip(net.parameters(), expected.parameters(), strict=True):
            if form is None:
                assert torch.equal(p, q), source
            else:
                here = distribute_tensor(q.detach(), p.device_mesh, p.placements, src_data_rank=None)
                assert torch.equal(p.to_local(), here.to_local()), (source, rank)


def run_ranks(context: Any, target: Any, root: str, form: Form) -> None:
    ranks = [context.Process(target=target, args=(root, form, r)) for r in range(ranks_of(form))]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(scaled(60))
    assert [process.exitcode for process in ranks] == [0] * len(ranks), form


def test_any_form_goes_on_in_any_other_bit_by_bit(tmp_path: Path) -> None:
    # Otherwise each of 28 processes would import torch's compiler by itself.
    with fork_server("tests.extended.train.checkpoint.test_parts", "torch._dynamo") as context:
        for form in FORMS:
            run_ranks(context, save, str(tmp_path), form)
        for form in FORMS:
            run_ranks(context, load, str(tmp_path), form)
