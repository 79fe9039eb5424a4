"""Training script of the benchmarks that kill replica groups: it trains for ever, and records its events.

Each process has a file of its own, with a line per event and times of the system-wide monotonic clock:

* ``S t pid group``: the process has started.
* ``M t``: the Manager is made.
* ``B t``: a batch is drawn.
* ``C t step groups mine``: a step is committed with so many groups; `mine` is 1 if this group took part.
* ``L t``: the group is late from now on.
* ``D t what``: a pause for other work has ended (lateness.py).
* ``E t``: the stand-in has ended.

In a group of several ranks rank 0 records all this. Another rank, named ``group/rank``, records only ``S`` and ``L``.
The Pythons of both libraries run this program.
"""

import argparse
import ctypes
import os
import socket
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
warnings.filterwarnings("ignore")

import torch  # noqa: E402

from benchmarks import SMALL, models  # noqa: E402


class Log:
    """The record of this process. Each line is one write, so that it is whole even if the process is killed."""

    def __init__(self, folder: str, group: str) -> None:
        path = Path(folder, f"{group.replace('/', '-')}-{os.getpid()}-{time.monotonic_ns()}.rec")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self("S", os.getpid(), group)

    def __call__(self, kind: str, *what: object) -> None:
        os.write(self._fd, " ".join([kind, repr(time.monotonic()), *map(str, what), "\n"]).encode())


def train(args: argparse.Namespace, log: Log) -> None:
    from benchmarks.adapter import Adapter

    torch.manual_seed(0)
    model, batch = models.make(args.model)
    adapter = Adapter(args.library, model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    log("M")
    manager = adapter.manager
    while True:
        adapter.optimizer.zero_grad()
        log("B")
        time.sleep(args.pace)
        models.loss_of(adapter.ddp, batch).backward()
        if adapter.step():
            log("C", manager.current_step(), manager.num_participants(), int(manager.is_participating()))


def train_late(args: argparse.Namespace, group: str, log: Log) -> None:
    """Train like `train`, with a data loader, and with a group that is late."""
    from benchmarks.adapter import Adapter
    from benchmarks.lateness import Lateness, Mixed

    torch.manual_seed(0)
    model, batch = models.make(args.model)
    adapter = Adapter(args.library, model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    manager = adapter.manager
    records = os.environ.get("RANK", "0") == "0"
    late = Lateness(args.late, group, Path(args.records), log)
    next(model.parameters()).register_hook(lambda grad: late.at("backward", args.pace))
    mixed = Mixed(group, lambda: models.compile_anew(batch), models.save, Path(args.records))
    is_mixed = late.kind.place == "mixed"
    in_worker = late.kind.place == "worker"
    for loaded in models.loader(batch, late.flag) if in_worker else models.Batches(batch, late.flag):
        late.at("loader", args.pace)
        adapter.optimizer.zero_grad()
        if records:
            log("B")
        late.at("step", args.pace)
        time.sleep(args.pace + (mixed.step(args.pace) if is_mixed else 0.0))
        models.loss_of(adapter.ddp, loaded).backward()
        if adapter.step():
            late.committed(manager.num_participants())
            if records:
                log("C", manager.current_step(), manager.num_participants(), int(manager.is_participating()))
        late.at("worker", args.pace)
        late.at("between", args.pace)
        if is_mixed and (did := mixed.between()):
            log("D", did)


def stand_in(args: argparse.Namespace, log: Log) -> None:
    """Cost the machine what a restarted group does, without the protocol.

    The stand-in does the same imports, makes the same model, and copies the bytes of its state (parameters and
    momentum) over plain TCP.
    """
    from benchmarks import adapter

    adapter.manager_options(args.library)  # imports the Manager's module
    model, _ = models.make(args.model)
    parameters = [p.data for p in model.parameters()]
    host, port = args.stand_in.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as s:
        s.sendall(str(2 * sum(p.nbytes for p in parameters)).encode() + b"\n")
        for tensor in [*parameters, *(torch.empty_like(p) for p in parameters)]:
            view = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
            while view:
                view = view[s.recv_into(view) :]
    log("E")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--library", required=True)
    p.add_argument("--records", required=True)
    p.add_argument("--model", default=SMALL)
    p.add_argument("--pace", type=float, default=0.005, help="seconds of computing that a step pretends to take")
    p.add_argument("--slow-group", default="", help="this group's steps pretend to take --slow-pace")
    p.add_argument("--slow-pace", type=float, default=0.2)
    p.add_argument("--late", default="", help="a kind of lateness.py")
    p.add_argument("--stand-in", default="")
    args = p.parse_args()
    torch.set_num_threads(1)
    group = os.environ["REPLICA_GROUP_ID"]
    if group == args.slow_group:
        args.pace = args.slow_pace
    rank = os.environ.get("RANK", "0")
    log = Log(args.records, group if rank == "0" else f"{group}/{rank}")
    if args.stand_in:
        stand_in(args, log)
    elif args.late:
        train_late(args, group, log)
    else:
        train(args, log)


if __name__ == "__main__":
    main()
