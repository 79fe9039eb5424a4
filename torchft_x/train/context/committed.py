"""The parameters and optimizer state of the last commit, which are in place when a step starts.

Newcomers copy them at that moment, and the groups compare them. Without the comparison a flipped bit, a heal that lost
something, or a parameter that one group changed by itself would stay until the end of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from torchft_x.core.types import State
from torchft_x.train.context.tensor_digest import TURNS, WHOLE_BYTES, fold, read_sums, sum_words
from torchft_x.transfer.format.flatten import is_dtensor

EVERY = 8
"""Commits between two comparisons. Each reads a sixteenth of the state, in turn, so all of it within 128 commits."""

_SLOTS = 4096  # tensors with a digest of their own; the last slot also holds all further ones
_NOTHING = (1 << 63) - 1  # min(x, this) == x for every int64


Held = tuple[torch.Tensor, str, torch.Tensor]
"""A parameter, a name in its state (empty: the parameter itself), and this rank's part of it."""


class CommittedState:
    """Parameters of the watched optimizers, and the tensors of their state. Used by the training thread.

    `compares`: whether they are compared with those of other groups.
    """

    def __init__(self, *, compares: bool) -> None:
        self._compares = compares
        self.script_moves_them = False  # whether the script has changed parameters inside a step of this process
        self._optimizers: list[Optimizer] = []
        self._sources: list[Callable[[], Iterable[Held]]] = []  # yield the compared tensors
        self._modules: list[nn.Module] = []  # modules that name the parameters
        self._versions = 0  # sum of the parameters' versions when the step started
        self._turn: int | None = 0  # selects the part that is compared; None: all
        self._sums: list[torch.Tensor] = []  # digests of the tensors compared in this step; empty: none

    def watch(self, optimizer: Optimizer) -> None:
        """Watch the parameters and state of `optimizer`."""
        self._optimizers.append(optimizer)
        self._sources.append(lambda: _tensors(optimizer))

    def compare(self, module: nn.Module, values: Mapping[str, torch.Tensor], outer: Optimizer | None) -> None:
        """Compare the global `values` of the parameters of `module`, by name, and the state of `outer`."""
        params = dict(module.named_parameters())
        self.name(module)
        self._sources.append(lambda: ((params[name], "the global value", value) for name, value in values.items()))
        if outer is not None:
            self._sources.append(lambda: (held for held in _tensors(outer) if held[1]))

    def name(self, module: nn.Module) -> None:
        """Use the parameter names of `module` in messages."""
        self._modules.append(module)

    def start_step(self, state: State, whole: bool | None = None) -> None:
        """Take the present tensors for those of `state`, and start to compare a part of them, if that is due.

        `whole`: compare all of them (True) or nothing (False), whatever is due.
        """
        self._versions = self._count_versions()
        turn, rest = divmod(state.step, EVERY)
        due = self._compares and (turn > 0 and rest == 0 if whole is None else whole)
        self._turn = None if whole else turn
        self._sums = [sum_words(t, turn) for _, _, t in self._part()] if due else []

    def moved(self) -> bool:
        """Return whether the parameters have been changed since the step started, as sharpness-aware minimisation does.

        It detects changes in place (`Tensor._version`), but not those through ``.data``. It takes 0.1 ms for a thousand
        parameters.
        """
        if self._count_versions() == self._versions:
            return False
        self.script_moves_them = True
        return True

    def digest(self) -> int:
        """Return the 64-bit digest of this step's comparison, equal in all groups; 0 if nothing is compared."""
        return fold(read_sums(self._sums)) or 1 if self._sums else 0

    def first_difference(self, pg: Any, timeout: float) -> str:
        """Return the name of the first compared tensor that differs among the members of `pg`; empty if none does.

        All members must call it, whether they compare or not. Raises the errors of `pg`.
        """
        values = read_sums(self._sums)
        if len(values) > _SLOTS:
            values[_SLOTS - 1 :] = [fold(values[_SLOTS - 1 :])]
        halves = [(v ^ v >> 32) & 0xFFFFFFFF for v in values]  # so that their negatives fit too
        rest = [_NOTHING] * (_SLOTS - len(halves))
        device = next((p.device for source in self._sources for p, _, _ in source()), None)
        least = torch.tensor([halves + rest, [-h for h in halves] + rest], device=device)
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.MIN
        pg.allreduce([least], opts).wait(timedelta(seconds=timeout))
        differ = [low + minus_high != 0 for low, minus_high in zip(*least.tolist(), strict=True)]
        return next((name for name, it in zip(self._names(), differ[: len(halves)], strict=False) if it), "")

    def replace(self) -> None:
        """Take the state that a heal has loaded for the committed one. This step compares nothing."""
        self._versions, self._sums = self._count_versions(), []

    def _count_versions(self) -> int:
        return sum([p._version for optimizer in self._optimizers for p in _parameters(optimizer)])

    def _part(self) -> Iterator[Held]:
        """Yield each large tensor, of which `sum_words` reads a sixteenth, and a sixteenth of the small ones; or all."""
        held, turn = (h for source in self._sources for h in source()), self._turn
        return (h for i, h in enumerate(held) if turn is None or (i - turn) % TURNS == 0 or h[2].nbytes > WHOLE_BYTES)

    def _names(self) -> Iterator[str]:
        """Yield the names of the compared tensors, in order."""
        names = {id(p): name for module in self._modules for name, p in module.named_parameters()}
        for p, key, _ in self._part():
            of = names.get(id(p), f"a parameter of shape {tuple(p.shape)}")
            yield f"{key} of {of}" if key else of


def _tensors(optimizer: Optimizer) -> Iterator[Held]:
    """Yield parameters, each before the tensors of its state."""
    states = getattr(optimizer, "state", None)
    for p in _parameters(optimizer):
        state = states.get(p) if isinstance(states, Mapping) else None
        for key, value in (
            ("", p),
            *(sorted(state.items(), key=lambda item: str(item[0])) if isinstance(state, Mapping) else ()),
        ):
            shard = value.to_local() if is_dtensor(value) else value
            if type(shard) in (torch.Tensor, nn.Parameter) and shard.layout is torch.strided:
                yield p, str(key), shard


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer. One that is not torch's may have no groups."""
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
