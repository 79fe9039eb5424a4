"""Turns a process forked by the warm parent into a worker, equal to a cold start of ``python -u SCRIPT ARG...``."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import os
import signal
import sys
import types
from collections.abc import Mapping

from torchft_x import env
from torchft_x.launch.process import shim

_SET_THREADS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
"""Names of OpenBLAS's function to set its threads: the first two in NumPy's own wheels, the others in distributions'."""


def prepare(rank: int, folder: str, environ: dict[str, str], command: list[str]) -> types.ModuleType:
    """Set up this process, right after the fork, as one that runs `command`. Return the `__main__` module for the script.

    `rank` is the local rank, `folder` holds the pipes to the supervisor, `environ` is the complete environment.
    """
    shim.speak_into(rank, folder)
    env.become(environ)
    _reseed()
    _give_numpy_its_threads(environ)
    shim.reset_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = list(command)
    script = command[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=script,
        __cached__=None,
        __annotations__={},
        __builtins__=sys.modules["builtins"],
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
    )
    sys.modules["__main__"] = main
    return main


def _reseed() -> None:
    """Reseed torch and NumPy, which draw a seed when they are imported; `random` and `tempfile` detect a fork themselves."""
    sys.modules["torch"].default_generator.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def _give_numpy_its_threads(environ: Mapping[str, str]) -> None:
    """Give NumPy's OpenBLAS, which has one thread in the parent, as many as it takes when it is loaded in that environment."""
    words = [environ.get(f"{name}_NUM_THREADS", "") for name in ("OPENBLAS", "GOTO", "OMP")]
    processors = len(os.sched_getaffinity(0))
    count = next((min(int(word), processors) for word in words if word.isdecimal() and int(word)), processors)
    if count == 1:
        return
    with open("/proc/self/maps") as f:
        paths = {line.split()[-1] for line in f if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        call = next((getattr(library, name) for name in _SET_THREADS if hasattr(library, name)), None)
        if call is not None:
            call(ctypes.c_int(count))


def run(main: types.ModuleType) -> None:
    """Run the script as `python SCRIPT` does. Show a traceback of its exception without our own frames."""
    script = sys.argv[0]
    try:
        with open(script, "rb") as f:
            code = compile(f.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as e:
        traceback = e.__traceback__.tb_next if e.__traceback__ is not None else None
        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, traceback  # exit handlers may read them
        sys.excepthook(type(e), e.with_traceback(traceback), traceback)
        sys.exit(1)
