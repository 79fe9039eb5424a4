"""Loads torch's compiler when something is compiled, instead of when the first optimizer is made.

Torch's optimizers import ``torch._dynamo`` when they are made, and FSDP2 imports it when it runs, to mark functions as
not to be compiled and to break graphs. The import loads 820 modules, takes half of a worker's start, and costs 68 MB.
Without compiled code nothing reads the marks. Source: ``torch/_compile.py``, ``torch/optim/optimizer.py``,
``_fsdp_common.py`` and ``distributed_c10d.py`` of PyTorch 2.13.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _TraceRules:
    """Stand-in for ``trace_rules``. Making a process group clears its cache, which is still empty before the import."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load().trace_rules, name)

    @staticmethod
    def clear_lru_cache() -> None:
        pass


class _Deferred(ModuleType):
    """Stand-in for ``torch._dynamo``. Calls that matter in compiled code only do nothing; others load the module."""

    trace_rules = _TraceRules()
    config: ModuleType

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # code that scans sys.modules must not load the compiler
            raise AttributeError(f"module {_NAME!r}, which isn't loaded yet, has no attribute {name!r}")
        return getattr(_load(), name)

    @staticmethod
    def disable(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(fn, FunctionType | MethodType):
            return _load().disable(fn, *args, **kwargs)
        marked: list[Callable[..., Any]] = []  # fn as the real `disable` marks it, once the compiler is loaded

        @functools.wraps(fn)
        def call(*a: Any, **k: Any) -> Any:
            if not marked:
                if not _is_loaded():
                    return fn(*a, **k)
                marked.append(_load().disable(fn, *args, **kwargs))
            return marked[0](*a, **k)

        return call

    @staticmethod
    def graph_break(*args: Any, **kwargs: Any) -> None:
        if _is_loaded():
            _load().graph_break(*args, **kwargs)


def defer_compiler_import() -> None:
    """Put a stand-in for ``torch._dynamo`` into `sys.modules`, which halves a worker's start.

    Call it before the model is sharded and the first optimizer is made. ``torch.compile`` works as before, and loads
    the compiler. If the compiler is loaded already, this does nothing.
    """
    if _NAME not in sys.modules:
        deferred = _Deferred(_NAME)
        sys.modules[_NAME] = deferred
        torch._dynamo = deferred  # the import statement sets this attribute too
        deferred.config = _load_config()


def _load_config() -> ModuleType:
    """Load the compiler's settings, which import nothing else of it, and leave them where the compiler will find them.

    Torch reads them when a DTensor is made.
    """
    name = f"{_NAME}.config"
    path = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "config.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    config = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    return config


def _is_loaded() -> bool:
    return not isinstance(sys.modules.get(_NAME), _Deferred)


def _load() -> ModuleType:
    if not _is_loaded():
        sys.modules.pop(_NAME, None)
    return importlib.import_module(_NAME)
