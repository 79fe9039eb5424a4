"""Whole jobs: a real lighthouse, real gloo on loopback, groups as threads of one process, or as processes to be killed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from tests.torch.train import forked
from tests.torch.train.fakes import run_threads
from tests.util import clock, scaled, wait_for
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.store.create import host_store
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.train.manager import Manager
from torchft_x.train.optim import OptimizerWrapper
from torchft_x.transfer.format.memory import memory_of

T = TypeVar("T")
HOST = "127.0.0.1"
ROOT = Path(__file__).parents[3]
rng = threading.Lock()  # guards torch's generator, which threads share
managers: list[Manager] = []  # all that `manager_of` has made


@contextlib.contextmanager
def lighthouse(min_replicas: int = 1, heartbeat_timeout_ms: int = int(clock(5000))) -> Iterator[str]:
    """Run a lighthouse, and yield its address.

    Its join timeout makes it wait for connected groups whose thread asks late.
    """
    server = LighthouseServer(f"{HOST}:0", min_replicas, int(clock(5000)), heartbeat_timeout_ms=heartbeat_timeout_ms)
    try:
        yield server.address()
    finally:
        server.shutdown()


def model(seed: int = 0) -> nn.Module:
    with rng:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(group: int, step: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * group + step))


def loss_of(net: nn.Module, group: int, step: int) -> torch.Tensor:
    return net(batch(group, step)).square().mean()


def manager_of(
    group: int, lighthouse_addr: str, pg: Any, load: Any = None, save: Any = None, *, kind: type[Manager] = Manager, **kwargs: Any
) -> Manager:  # fmt: skip
    """Make a Manager on loopback with the time-outs of tests."""
    patience = dict.fromkeys(("timeout", "quorum_timeout", "connect_timeout"), scaled(20.0))
    alone = {"rank": 0, "world_size": 1, "store_addr": HOST, "store_port": 0, "hostname": HOST, "min_replica_size": 1}
    made = kind(
        pg=pg, load_state_dict=load, state_dict=save, lighthouse_addr=lighthouse_addr, replica_id=f"group_{group}",
        **{**patience, **alone, **kwargs},
    )  # fmt: skip
    managers.append(made)
    return made


class Trainer:
    """One attempt of a group: model, optimizer and Manager as a script would make them.

    Its initial weights depend on a seed of its own, so that only the protocol can make weights equal.
    """

    def __init__(
        self, group: int, lighthouse_addr: str, *, seed: int | None = None, net: nn.Module | None = None, **kwargs: Any
    ) -> None:
        self.group = group
        self.net = net or model(group if seed is None else seed)
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        kwargs.setdefault("straggler_timeout", scaled(20.0))  # these tests delay threads; see test_stragglers
        cap = kwargs.pop("bucket_cap_mb", None)
        kwargs.setdefault("rehearse", False)  # a rehearsal adds a step before a newcomer heals; see test_newcomers
        self.pg = ProcessGroupGloo(kwargs.pop("pg_timeout", scaled(20.0)), host=HOST)
        self.manager = manager_of(group, lighthouse_addr, self.pg, self.load, self.save, **kwargs)
        self.model = DistributedDataParallel(self.manager, self.net, bucket_cap_mb=cap)
        self.optimizer = OptimizerWrapper(self.manager, self.optim)
        self.history: dict[int, dict[str, torch.Tensor]] = {}  # parameters after each committed step

    def save(self) -> dict[str, Any]:
        return {"model": self.net.state_dict(), "optim": self.optim.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["model"])
        self.optim.load_state_dict(state["optim"])

    def step(self, hook: Callable[[], None] | None = None) -> bool:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.group, self.manager.current_step())
        if hook is not None:
            hook()
        loss.backward()
        return self.finish_step()

    def finish_step(self) -> bool:
        self.optimizer.step()
        if self.optimizer.committed:
            self.remember()
        return bool(self.optimizer.committed)

    def remember(self) -> None:
        self.history[self.manager.current_step()] = {k: v.clone() for k, v in self.net.state_dict().items()}

    def run_to(self, step: int) -> Trainer:
        while self.manager.current_step() < step:
            self.step()
        return self


def start(groups: int, address: str, **kwargs: Any) -> list[Trainer]:
    return run_threads(groups, lambda g: Trainer(g, address, **kwargs))


def leave(*trainers: Any) -> None:
    run_threads(len(trainers), lambda i: trainers[i].manager.shutdown())


@contextlib.contextmanager
def ranks_of_one(ranks: int, address: str, end: Callable[..., None] = leave, **kwargs: Any) -> Iterator[list[Trainer]]:
    """Start one group with its ranks as threads, and call `end` with all of them."""
    store, where = host_store(HOST, scaled(10))
    at = {"world_size": ranks, "store_port": where.port}
    trainers = run_threads(ranks, lambda rank: Trainer(0, address, rank=rank, **at, **kwargs))
    try:
        yield trainers
    finally:
        end(*trainers)
        del store


def two_by_two(
    address: str, body: Callable[[int, Trainer], T], options: Callable[[int], dict[str, Any]] = lambda i: {}
) -> list[T]:
    """Run two groups of two ranks: `body(i, trainer)` for rank i % 2 of group i // 2, with settings `options(i)`."""
    stores = [host_store(HOST)[0] for _ in range(2)]

    def run(i: int) -> T:
        store = stores[i // 2].port
        trainer = Trainer(i // 2, address, rank=i % 2, world_size=2, store_port=store, **options(i))
        result = body(i, trainer)
        trainer.manager.shutdown()
        return result

    return run_threads(4, run)


def reference(groups: int, steps: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return the parameters after each step of one process that computes every group's batch."""
    net = model(seed)
    optim = torch.optim.AdamW(net.parameters(), lr=0.05)
    out = []
    for step in range(steps):
        optim.zero_grad()
        for g in range(groups):
            (loss_of(net, g, step) / groups).backward()
        optim.step()
        out.append({k: v.clone() for k, v in net.state_dict().items()})
    return out


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


def near(found: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-4)


class Gate:
    """Barrier that lets a thread run up to a point and wait there."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(scaled(30))


def digest(values: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 of all bits of non-empty tensors."""
    h = hashlib.sha256()
    for value in values:
        h.update(memory_of(value.detach().contiguous().view(-1).view(torch.uint8)))
    return h.hexdigest()


class Told:
    """A group process's side of the exchange with its test: it writes lines and reads files.

    A line has kind, step, digest and time. The lines go to `path`; the last step is written in the file ``stop`` beside.
    """

    def __init__(self, group: int, lighthouse: str, path: Path) -> None:
        self.group, self.lighthouse, self.path = group, lighthouse, path
        self._stop = path.with_name("stop")
        self._out = path.open("a", buffering=1)

    def say(self, what: str, step: int = 0, value: str = "-") -> None:
        self._out.write(f"{what} {step} {value} {time.monotonic()}\n")

    def step(self, trainer: Trainer, committed: bool, values: Iterable[torch.Tensor] | None = None) -> None:
        """Write a line about a step of `trainer`.

        `values`: tensors that must be equal in all groups; None: its state dict.
        """
        values = trainer.net.state_dict().values() if values is None else values
        self.say(
            "commit" if committed else "drop", trainer.manager.current_step(), digest(values) if committed else "-"
        )

    def goes_on(self, step: int) -> bool:
        """Return whether the last step is not set yet, or is beyond `step`."""
        return not self._stop.exists() or step < int(self._stop.read_text())

    def file(self, name: str) -> Path:
        """Return the file with which the test controls this process."""
        return self.path.with_name(f"{self.path.name}.{name}")


def _enter(body: Callable[..., None], group: int, lighthouse: str, path: Path, *more: str) -> None:
    body(Told(group, lighthouse, path), *more)


class Group:
    """A group's processes over its attempts, which all write to one file."""

    def __init__(self, number: int, address: str, folder: Path, body: Callable[..., None], *more: str) -> None:
        self.path = folder / f"group{number}.txt"
        self.path.touch()
        self._call = (_enter, body, number, address, self.path, *more)
        self.start()

    def start(self) -> None:
        self.process = forked.start(*self._call, log=self.path.with_suffix(".log"))

    def kill(self) -> float:
        """Kill the process, and return the time of that in monotonic seconds."""
        now = time.monotonic()
        self.process.kill()
        self.process.join()
        return now

    def file(self, name: str) -> Path:
        """Return the file with which a test controls this process."""
        return self.path.with_name(f"{self.path.name}.{name}")

    def lines(self, kind: str = "commit") -> list[tuple[int, str, float]]:
        """Return (step, digest, monotonic time) of each complete line of this kind."""
        split = (line.split() for line in self.path.read_text().split("\n")[:-1])
        return [(int(step), digest, float(when)) for what, step, digest, when in split if what == kind]

    def last_step(self) -> int:
        return max((step for step, _, _ in self.lines()), default=0)


@contextlib.contextmanager
def running(count: int, *args: Any) -> Iterator[list[Group]]:
    """Start groups 0, 1, ... (`args` as of a `Group`), and kill those that remain at the end."""
    groups = [Group(i, *args) for i in range(count)]
    try:
        yield groups
    finally:
        for g in groups:
            g.kill()


def wait_steps(groups: Sequence[Group], more: int, what: str = "the groups to train") -> None:
    """Wait until all groups are `more` steps beyond the newest of them."""
    goal = max(g.last_step() for g in groups) + more
    wait_for(lambda: all(g.last_step() >= goal for g in groups), 60, what)


def finish(groups: Sequence[Group], more: int) -> int:
    """Let all groups train `more` steps and end without error. Return the last step."""
    last = max(g.last_step() for g in groups) + more
    folder = groups[0].path.parent
    (folder / "new").write_text(str(last))
    (folder / "new").rename(folder / "stop")
    wait_end(groups)
    return last


def wait_end(groups: Sequence[Group]) -> None:
    wait_for(lambda: all(g.process.exitcode is not None for g in groups), 60, "the end of the run")
    assert [g.process.exitcode for g in groups] == [0] * len(groups)


def digests_of(groups: Sequence[Group]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for g in groups:
        for step, digest, _ in g.lines():
            found.setdefault(step, set()).add(digest)
    return found


def check_equal(groups: Sequence[Group], last: int) -> None:
    """Check that no step up to the last one is missing, and that all groups had the same digest after each."""
    found = digests_of(groups)
    assert sorted(found) == list(range(1, last + 1))
    assert [step for step, digests in found.items() if len(digests) > 1] == []


def killed_and_back(
    groups: Sequence[Group], rng: random.Random, *, kills: int, together: int, within: float, more: int
) -> tuple[list[float], int]:
    """Kill a random group with SIGKILL and start its next attempt, `kills` times; then let all groups finish.

    Args:
        kills: number of kills; `together` steps of all groups come before each, and after the last of the last victim.
        within: seconds after these steps within which the kill comes.
        more: number of steps that all make at the end.

    Returns the seconds until the next step of each survivor of each kill, and the last step.
    """
    waits = []
    for _ in range(kills):
        wait_steps(groups, together)
        time.sleep(rng.random() * within)
        victim = rng.choice(groups)
        when = victim.kill()
        for g in groups:
            if g is not victim:
                after = wait_for(lambda: [t for _, _, t in g.lines() if t > when + 0.002], 30, "a survivor's next step")  # noqa: B023
                waits.append(after[0] - when)
        victim.start()
    back = victim.last_step()
    wait_for(lambda: victim.last_step() > back + together, 60, "the last one killed to be back")
    return waits, finish(groups, more)
