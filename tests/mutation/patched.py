"""Put a mutant into modules that are loaded already: the code of one function is exchanged, its object stays.

So whoever has imported the function by its name calls the mutant, too, and nothing has to be imported again. What ran
while the tests were collected (a default value, a table of a module) stays as it was.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from typing import Any

from tests.mutation.mutants import Mutant, changed


def install(mutant: Mutant, source: str, package: str = "torchft_x.core") -> None:
    """In this process, for good."""
    module = importlib.import_module(f"{package}.{mutant.module}")
    tree = changed(mutant, source)
    mutated = dict(_codes(compile(tree, str(module.__file__), "exec", dont_inherit=True)))
    exchanged = 0
    for function in _functions(vars(module), module.__name__):
        code = function.__code__
        new = mutated.get((code.co_firstlineno, code.co_name))
        if new is not None and code.co_filename == module.__file__:
            function.__code__ = new
            exchanged += 1
    if not exchanged:
        raise LookupError(f"Found no function of {module.__name__} to exchange for {mutant.key}.")


def _codes(code: types.CodeType) -> Iterator[tuple[tuple[int, str], types.CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield (constant.co_firstlineno, constant.co_name), constant
            yield from _codes(constant)


def _functions(names: dict[str, Any] | types.MappingProxyType[str, Any], module: str) -> Iterator[types.FunctionType]:
    """Functions of a module and methods of its classes, whatever they are wrapped in."""
    for value in list(names.values()):
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _functions(vars(value), module)
            continue
        wrapped = [value, *(getattr(value, name, None) for name in ("fget", "fset", "func", "__func__", "__wrapped__"))]
        for function in wrapped:
            if isinstance(function, types.FunctionType) and function.__module__ == module:
                yield function
