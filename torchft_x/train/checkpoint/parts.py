"""Gathers and loads the parts of a checkpoint: objects with ``state_dict()`` and ``load_state_dict()``, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchft_x.core.fingerprint import without_compiled
from torchft_x.core.types import listed
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.shards import like, local
from torchft_x.transfer.format.flatten import is_dtensor, new_dtensors

_ANOTHER = "it was saved by another model"


def check(parts: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an object that can't be a part, or a name that is no text."""
    for name, part in parts.items():
        if not isinstance(name, str) or not all(
            callable(getattr(part, f, None)) for f in ("state_dict", "load_state_dict")
        ):
            raise ConfigError(
                f"Checkpoint: {name!r} is a {type(part).__name__}; a part has a name, state_dict() and load_state_dict()."
            )


def gather(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}


def is_copied(part: Any) -> bool:
    """Return whether a group that joins a running job always copies `part` from the others: models and optimizers.

    A script may have left other parts (a scheduler, the position in the data) out of the Manager's state.
    """
    return isinstance(part, (nn.Module, Optimizer))


def places(parts: Mapping[str, Any], shapes: Mapping[str, Any], *, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the tensors into which saved parts are read: a model's own tensors, else DTensors like the present ones.

    `shapes` is the saved state on the meta device. Parts in `left_out` keep these meta tensors, so that nothing is read
    for them.

    Raise `ConfigError` if the saved parts are others, or of another model. `load_state_dict` would raise only after it
    has changed the tensors that fit.
    """
    if set(parts) != set(shapes):
        raise ConfigError(
            f"it holds {', '.join(sorted(shapes))}, and this script saves {', '.join(sorted(parts))}; give Checkpoint the "
            "same parts."
        )
    found = {name: _place(name, part, shapes[name]) for name, part in parts.items()}
    return found | {name: shapes[name] for name in left_out}


def _place(name: str, part: Any, shapes: Any) -> Any:
    if isinstance(part, nn.Module):
        own = part.state_dict()
        takes_others = type(part).load_state_dict is not nn.Module.load_state_dict
        if isinstance(shapes, Mapping) and not takes_others:
            _check_model(name, *({without_compiled(str(k)): v for k, v in state.items()} for state in (own, shapes)))
        return {saved: own.get(mine) for saved, mine in _own_names(own, shapes).items()}
    if isinstance(part, Optimizer):
        _check_optimizer(name, part, shapes)
        return _place_of_optimizer(part, shapes)
    return new_dtensors(part.state_dict())


def _check_model(name: str, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a model with the state `own` can't load a state with the keys and shapes of `saved`."""
    missing, unknown = [k for k in own if k not in saved], [k for k in saved if k not in own]
    if missing or unknown:
        lacks = f"lacks {listed(missing, 1)}" if missing else ""
        has = f"has {listed(unknown, 1)}, which is not in the model" if unknown else ""
        raise ConfigError(f"{name}: the checkpoint {' and '.join(filter(None, (lacks, has)))}; {_ANOTHER}.")
    for key, value in own.items():
        if isinstance(value, torch.Tensor) and value.shape != getattr(saved[key], "shape", None):
            there = tuple(getattr(saved[key], "shape", ()))
            raise ConfigError(f"{name}: {key} is {there} in the checkpoint and {tuple(value.shape)} here; {_ANOTHER}.")


def _check_optimizer(name: str, optimizer: Optimizer, saved: Any) -> None:
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    there = [len(group["params"]) for group in groups or ()]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if there != here:
        raise ConfigError(f"{name}: the checkpoint has groups of {there} parameters, and here are {here}; {_ANOTHER}.")


def _place_of_optimizer(optimizer: Optimizer, shapes: Any) -> Any:
    """Return tensors, sharded like the parameters, for the state of an optimizer that may not have stepped yet."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    found = shapes.get("state") if isinstance(shapes, dict) else None
    state: dict[Any, Any] = {}
    for index, values in (found or {}).items():
        if type(index) is not int or index >= len(params) or not isinstance(values, dict):
            continue
        p = params[index]
        state[index] = {
            key: like(p, torch.empty_like(local(p), dtype=value.dtype))
            for key, value in values.items()
            if is_dtensor(p) and isinstance(value, torch.Tensor) and value.shape == p.shape
        }
    return {"state": state}


def put_back(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        saved = state[name]
        part.load_state_dict(_renamed(part.state_dict(), saved) if isinstance(part, nn.Module) else saved)


def _renamed(own: Mapping[str, Any], saved: Any) -> Any:
    """Return a module's saved state with the names of `own`, the present module's state."""
    names = _own_names(own, saved)
    if all(theirs == mine for theirs, mine in names.items()):
        return saved
    renamed = OrderedDict((mine, saved[theirs]) for theirs, mine in names.items())
    # Without the submodules' versions load_state_dict takes the state for an old version's. A compiled module and the
    # one inside it have the same name here: the inner one comes later and has the version.
    versions = {without_compiled(module): value for module, value in getattr(saved, "_metadata", {}).items()}
    present = {module: versions.get(without_compiled(module)) for module in getattr(own, "_metadata", {})}
    renamed._metadata = {m: value for m, value in present.items() if value is not None}  # type: ignore[attr-defined]
    return renamed


def _own_names(own: Mapping[str, Any], saved: Any) -> dict[Any, Any]:
    """Return the present module's name for each saved name. They differ if only one of the modules is compiled."""
    mine = {without_compiled(name): name for name in own}
    return {name: mine.get(without_compiled(str(name)), name) for name in saved} if isinstance(saved, Mapping) else {}
