"""No garbage collection in the middle of what makes many small objects, and no cycle."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """Run it without collections of cyclic garbage.

    Python looks for cycles each time so many objects have been made, and walks through all that live. For a state of 20,000
    tensors that was half of the time at both ends (decision 56). Two threads at once do no harm: whoever found collections
    on turns them on again.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run
