"""A forked process on its way to be what a cold start makes of it: ``python -u SCRIPT ARG...``."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import signal
import sys
import types

from torchft_x import env
from torchft_x.launch.process import shim


class Worker:
    """One worker of a life that has not begun yet."""

    def __init__(self, agent: int, word: int) -> None:
        """In the process itself, right after the fork."""
        self._word = word  # pipe; says which worker of which life this is
        os.setsid()
        shim.die_with(agent)

    def prepare(self, command: list[str]) -> types.ModuleType:
        """Wait until the life begins, and become the process that runs `command`; the module to run it in."""
        with open(self._word) as pipe:
            text = pipe.read()
        if not text:  # the agent is gone, and this process about to be
            os._exit(1)
        word = json.loads(text)
        shim.speak_into(word["rank"], word["folder"])
        _announce(word["rank"], word["folder"])
        env.become(word["env"])
        _reseed()
        _reset_signals()
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


def _announce(rank: int, folder: str) -> None:
    """Tell the supervisor which process this rank is."""
    pids = os.open(f"{folder}/pids", os.O_WRONLY)
    os.write(pids, f"{rank} {os.getpid()}\n".encode())
    os.close(pids)


def _reset_signals() -> None:
    shim.reset_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _reseed() -> None:
    """What a process draws when it loads these; `random` and `tempfile` see a fork by themselves."""
    sys.modules["torch"].default_generator.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def run(main: types.ModuleType) -> None:
    """The script, as `python SCRIPT` runs it: what it raises is shown without our own frames."""
    script = sys.argv[0]
    try:
        with open(script, "rb") as f:
            code = compile(f.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as e:
        traceback = e.__traceback__.tb_next if e.__traceback__ is not None else None
        sys.excepthook(type(e), e.with_traceback(traceback), traceback)
        sys.exit(1)
