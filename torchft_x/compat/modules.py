"""Import hooks that make the modules of `names.TREE`, as ``torchft_x.compat.NAME`` and as ``torchft.NAME``.

Both names refer to one module, so classes are identical under both. Standard library only, because this runs at the
start of every Python process whose PYTHONPATH has the folder `path`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import MutableMapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchft_x.compat.names import LACKING, ROOT, TREE

HERE = "torchft_x.compat"
PEER = "torchft"


def install(*, as_torchft: bool = False) -> None:
    """Put the finders before all others. `as_torchft`: also under the name torchft, installed or not. Idempotent."""
    known = {finder.root for finder in sys.meta_path if isinstance(finder, Finder)}
    for root in (HERE, PEER) if as_torchft else (HERE,):
        if root not in known:
            sys.meta_path.insert(0, Finder(root))


def fill(namespace: MutableMapping[str, Any], module: str) -> None:
    """Give a module's namespace the names of torchft's `module`, which are loaded at their first use."""
    names = TREE[module]
    below = f"{HERE}.{module}" if module else HERE
    children = {name.removeprefix(f"{module}.") if module else name for name in TREE if name.startswith(module)}
    children = {child for child in children if child and "." not in child}

    def get(name: str) -> Any:
        ours = names.get(name)
        if ours is not None:
            where, _, attribute = ours.partition(":")
            value = getattr(importlib.import_module(f"torchft_x.{where}"), attribute)
        elif name in children:
            return importlib.import_module(f"{below}.{name}")
        else:
            raise AttributeError(_no_such(module, name))
        namespace[name] = value
        return value

    namespace["__getattr__"] = get
    namespace["__dir__"] = lambda: sorted({*namespace, *names, *children})
    namespace["__all__"] = sorted(name for name in names if not name.startswith("_"))


def _no_such(module: str, name: str) -> str:
    full = f"{module}.{name}" if module else name
    why = LACKING.get(full)
    if why is not None:
        return f"torchft_x has no torchft.{full}: {why}."
    return (
        f"module {PEER + (f'.{module}' if module else '')!r} of torchft_x has no attribute {name!r} (docs/torchft.md)."
    )


class Finder(MetaPathFinder):
    """Finder of the modules below `HERE`, or of `PEER` and the modules below, which are the same."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = _below(self.root, fullname)
        if name is None or fullname == HERE:
            return None
        if self.root == PEER and name in LACKING:
            raise ModuleNotFoundError(f"torchft_x has no {fullname}: {LACKING[name]}.", name=fullname)
        if name not in TREE:
            return None
        is_package = name == ROOT or any(other.startswith(f"{name}.") for other in TREE)
        return ModuleSpec(fullname, _Maker(name) if self.root == HERE else _Same(name), is_package=is_package)


class _Maker(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # Python makes the module

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"torchft.{self._name}, as torchft_x has it. See docs/torchft.md."
        fill(vars(module), self._name)


class _Same(Loader):
    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None  # the module's own spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{HERE}.{self._name}" if self._name else HERE)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it by the spec of the name torchft


def _below(root: str, fullname: str) -> str | None:
    if fullname == root:
        return ROOT
    return fullname.removeprefix(f"{root}.") if fullname.startswith(f"{root}.") else None
