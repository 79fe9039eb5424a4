"""Adapter that hides the differences between torchft and torchft_x in a training script.

The Pythons of both libraries run this module.
"""

import importlib
import inspect
import os
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore


class Adapter:
    """A library's Manager, DistributedDataParallel and Optimizer, with their defaults except for `options`."""

    def __init__(self, module: str, model: nn.Module, optim: torch.optim.Optimizer, **options: Any) -> None:
        self.library = importlib.import_module(module)
        self.manager = self._make_manager(model, optim, options)
        self.ddp = self.library.DistributedDataParallel(self.manager, model)
        self.optimizer = self.library.Optimizer(self.manager, optim)

    def _make_manager(self, model: nn.Module, optim: torch.optim.Optimizer, options: dict[str, Any]) -> Any:
        def load(state: dict[str, Any]) -> None:
            model.load_state_dict(state["model"])
            optim.load_state_dict(state["optim"])

        if "RANK" not in os.environ:  # no torchrun: a group of one process
            options = {"rank": 0, "world_size": 1, **options}
            if self.library.__name__ == "torchft":  # torchft_x hosts its store itself
                self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                options = {"store_addr": "127.0.0.1", "store_port": self._store.port, **options}
        elif os.environ["RANK"] == "0" and self.library.__name__ == "torchft":  # it expects the store of torchrun
            where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._store = TCPStore(*where, is_master=True, wait_for_workers=False)
        return self.library.Manager(
            pg=self.library.ProcessGroupGloo(),
            load_state_dict=load,
            state_dict=lambda: {"model": model.state_dict(), "optim": optim.state_dict()},
            min_replica_size=1,
            replica_id=os.environ["REPLICA_GROUP_ID"],
            **options,
        )

    def step(self) -> bool:
        """Vote, step the optimizer, and return whether the step was committed."""
        before = self.manager.current_step()
        self.optimizer.step()
        committed = getattr(self.optimizer, "committed", None)
        return bool(self.manager.current_step() > before if committed is None else committed)


def manager_options(module: str) -> set[str]:
    """Return the names of the Manager's arguments, so that a benchmark can leave out options that a version lacks."""
    return set(inspect.signature(importlib.import_module(module).Manager.__init__).parameters)
