"""Additions of a trial to a training script of `scripts/`: they act between two steps, where the script asks `Leaving`.

The script's own `train` runs, with some of the names it imports replaced: `Transformer`, to know the model, and
`Leaving`, whose `requested` is called between two steps. `train_diloco.make_loop` is replaced to know the loop, and
`make_loader` of the others to know the samples of each micro batch.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from benchmarks.trial.dump import Dumper
from torchft_x import DiLoCo, Leaving, env, exit_code, observe


def split_flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the trial's own flags and the script's arguments."""
    p = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    p.add_argument("--until", metavar="FILE", help="stop at the commit whose number is in this file, once it is there")
    p.add_argument("--dump-params", metavar="DIR", help="write all parameters after every commit")
    p.add_argument("--pace", type=float, default=0.0, help="shortest time of a step in seconds")
    return p.parse_known_args(argv)


def run(script: ModuleType) -> int:
    """Train as `script` does, and return the exit code."""
    return exit_code(lambda: _train(script))


def _train(script: ModuleType) -> None:
    flags, rest = split_flags(sys.argv[1:])
    trial = Trial(flags)

    class Boundary(Leaving):
        """The script's `Leaving`, which lets the trial act at each boundary."""

        def __init__(self, manager: Any, *args: Any) -> None:
            super().__init__(manager, *args)
            trial.begin(manager)

        def requested(self) -> bool:
            trial.dump()
            trial.pace()
            return trial.is_over() or super().requested()  # all ranks agree on the former: none has passed that step

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            if kind is None:
                trial.dump()  # the last step ends without another call of `requested`
            super().__exit__(kind, error, trace)

    script.Transformer = trial.capture("model", script.Transformer)
    script.Leaving = Boundary
    if hasattr(script, "make_loop"):
        script.make_loop = trial.capture("loop", script.make_loop)
    else:
        script.make_loader = trial.capture("data", script.make_loader)
    script.train(script.parse_args(rest))


class Trial:
    """State of a trial between the steps of one process."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self.model: nn.Module | None = None
        self.loop: Any = None  # DiLoCo or LocalSGD, where groups train apart
        self._manager: Any = None
        self._dumper: Dumper | None = None
        self._dumped = 0  # number of the newest commit that is dumped
        self._rounds = 0  # steps that this process has begun, dropped ones included
        self._began: float | None = None  # monotonic time at which the current step began
        self._commit: dict[str, Any] = {}  # newest event `commit`
        self._healed = True  # whether this process is new, or has loaded a state, since its newest commit
        self.data: Any = None  # the ElasticLoader, where groups average each step
        self._micros: list[list[int]] = []  # indices of the samples of the step's micro batches, if they count
        self._losses: list[torch.Tensor] = []  # losses of the step's micro batches
        observe.subscribe(self._take)

    def capture(self, name: str, make: Any) -> Any:
        """Return `make`, with its result stored in the attribute `name` as well."""

        @functools.wraps(make, updated=())
        def made(*args: Any, **kwargs: Any) -> Any:
            setattr(self, name, make(*args, **kwargs))
            return getattr(self, name)

        return made

    def begin(self, manager: Any) -> None:
        """Store the Manager (None on a rank without one), once model and loop are complete, and prepare the dumps."""
        self._manager = manager
        self._dumped = self._commits()
        if self._flags.dump_params is None or manager is None:
            return
        group, rank = manager.name.rsplit("/", 1)
        attempt = env.read_attempt().number
        self._dumper = Dumper(self._flags.dump_params, self._parameters(), group, int(rank), attempt)
        if self.loop is None:
            self._watch_data()
            self.model.register_forward_hook(self._after_forward)

    def dump(self) -> None:
        """Write the parameters if they were committed since the last call."""
        if self._dumper is None or self._commits() == self._dumped:
            return
        if self.loop is None:
            if self._commit.get("step") != self._commits() - 1:
                return  # a state was copied, and the step was dropped
            drawn = {
                "drawn": self._rounds,
                "participants": self._commit["participants"],
                "position": self.data.position.to_json(),
                "micros": self._micros,
                "losses": [loss.item() for loss in self._losses[: len(self._micros)]],
            }
        else:
            drawn = {}
        self._dumped = self._commits()
        committed_in = self._commit.get("quorum", 0)
        self._dumper.write(self._dumped, t=time.time(), committed_in=committed_in, healed=self._healed, **drawn)
        self._healed = False

    def pace(self) -> None:
        """Sleep until the step has taken as long as --pace says, and begin the next one."""
        if self._began is not None:
            time.sleep(max(0.0, self._began + self._flags.pace - time.monotonic()))
        self._began = time.monotonic()
        self._rounds += 1

    def is_over(self) -> bool:
        """Return whether the file --until is there and names no later commit than the newest."""
        if not self._flags.until or not os.path.exists(self._flags.until):
            return False
        with open(self._flags.until) as f:
            return self._commits() >= int(f.read())

    def _commits(self) -> int:
        """Return the number of committed steps, or of exchanges where groups train apart."""
        return self.loop.exchanges if self.loop is not None else self._manager.current_step()

    def _parameters(self) -> list[torch.Tensor]:
        """Return what all groups must hold alike: the parameters in this rank's memory, or DiLoCo's global ones."""
        if isinstance(self.loop, DiLoCo):
            return [t for part in self.loop.global_parameters for t in part.values()]
        return [p.to_local() if hasattr(p, "to_local") else p for p in self.model.parameters()]

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "commit":
            self._commit = event
        elif event["event"] in ("heal_end", "restored"):
            self._healed = True

    def _watch_data(self) -> None:
        """Record the micro batches that the script gets."""
        step = self.data.step

        def watched() -> Iterator[Any]:
            self._micros, self._losses = [], []
            for micro in step():
                if micro.counts:
                    self._micros.append(micro.indices)
                yield micro

        self.data.step = watched

    @torch.compiler.disable
    def _after_forward(self, module: nn.Module, inputs: Any, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())
