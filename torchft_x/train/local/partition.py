"""Cuts a model into the fragments that Streaming DiLoCo exchanges in turn."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from torchft_x.errors import ConfigError


def cut_into_fragments(model: nn.Module, num_fragments: int = 1, fqns: Sequence[Sequence[str]] = ()) -> list[nn.Module]:
    """Return the modules for `DiLoCo`, one per fragment. Every parameter that needs a gradient is in exactly one.

    `fqns` names the modules of each fragment. Without it the model's children, with those of a ModuleList or Sequential
    taken singly, are cut in their order into `num_fragments` runs of about as many values each.

    Raises `ConfigError` for an unknown name, for more fragments than children, and for a parameter in no or two
    fragments.
    """
    if not fqns and num_fragments == 1:
        return [model]
    modules = dict(model.named_modules())
    if fqns:
        for name in (name for part in fqns for name in part):
            if name not in modules:
                raise ConfigError(f"the model has no module {name!r} (module_fqns_per_model_fragment).")
        parts = [[modules[name] for name in part] for part in fqns]
    else:
        parts = _runs(_units(model), num_fragments)
    made: list[nn.Module] = [part[0] if len(part) == 1 else nn.ModuleList(part) for part in parts]
    count: dict[nn.Parameter, int] = {}
    for module in made:
        for p in module.parameters():
            count[p] = count.get(p, 0) + 1
    for name, p in model.named_parameters():
        if p.requires_grad and count.get(p, 0) != 1:
            raise ConfigError(
                f"parameter {name} is in {count.get(p, 0)} fragments; it must be in one. Name the modules of each fragment "
                "(module_fqns_per_model_fragment)."
            )
    return made


def _units(model: nn.Module) -> list[nn.Module]:
    units: list[nn.Module] = []
    for child in model.children():
        units += list(child.children()) if isinstance(child, (nn.ModuleList, nn.Sequential)) else [child]
    return [u for u in units if any(p.requires_grad for p in u.parameters())]


def _runs(units: list[nn.Module], n: int) -> list[list[nn.Module]]:
    if n > len(units):
        raise ConfigError(f"the model has {len(units)} parts, which can't be cut into {n} fragments (num_fragments).")
    sizes = [sum(p.numel() for p in u.parameters()) for u in units]
    total, done = sum(sizes), 0
    runs: list[list[nn.Module]] = [[] for _ in range(n)]
    at = 0
    for i, (unit, size) in enumerate(zip(units, sizes, strict=True)):
        left = len(units) - i  # number of units still to place, including this one
        behind = done + size / 2 > total * (at + 1) / n
        if runs[at] and at + 1 < n and (behind or left == n - at - 1):
            at += 1
        runs[at].append(unit)
        done += size
    return runs
