"""torch's compiler, loaded when something is compiled instead of when the first optimizer is made.

Every optimizer of torch imports ``torch._dynamo`` when it is made, and FSDP2 when it runs, to mark functions as not to be
compiled and to break graphs between them: 820 modules, half of what it takes a worker to start, and 68 MB. Where nothing is
compiled nobody reads the marks. Source: ``torch/_compile.py``, ``torch/optim/optimizer.py``, ``_fsdp_common.py`` and
``distributed_c10d.py`` of PyTorch 2.13.
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
    """A process group that is made empties a cache of theirs, which nobody has filled yet."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load().trace_rules, name)

    @staticmethod
    def clear_lru_cache() -> None:
        pass


class _Deferred(ModuleType):
    """In its place: what torch asks of it outside of compiled code does nothing, and all else is asked of the real one."""

    trace_rules = _TraceRules()
    config: ModuleType

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # whoever looks through sys.modules doesn't mean it
            raise AttributeError(f"module {_NAME!r}, which isn't loaded yet, has no attribute {name!r}")
        return getattr(_load(), name)

    @staticmethod
    def disable(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(fn, FunctionType | MethodType):
            return _load().disable(fn, *args, **kwargs)
        marked: list[Callable[..., Any]] = []  # fn as the real one marks it, once that is loaded

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
    """Call it before the model is sharded and the first optimizer is made: a start takes half as long.

    ``torch.compile`` works as before, and loads the compiler. Does nothing where that is loaded already.
    """
    if _NAME not in sys.modules:
        deferred = _Deferred(_NAME)
        sys.modules[_NAME] = deferred
        torch._dynamo = deferred  # as the import statement does
        deferred.config = _load_config()


def in_compiled_code() -> bool:
    """Whether the caller is called, at any depth, by what was given to ``torch.compile``. Loads no compiler."""
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)()  # private: may go
    return callback is not None and callback is not False


def _load_config() -> ModuleType:
    """Its settings, which import nothing of it, and are read when a DTensor is made. The compiler will find them there."""
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
