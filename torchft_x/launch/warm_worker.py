"""A forked process on its way to be what a cold start makes of it: ``python -u SCRIPT ARG...``, below torchrun."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import signal
import sys
import types

from torchft_x import env
from torchft_x.launch import shim


class Worker:
    """One worker of a life that has not begun yet."""

    def __init__(self, agent: int, word: int) -> None:
        """In the process itself, right after the fork."""
        self._word = word  # pipe; says which worker of which life this is
        os.setsid()
        shim.die_with(agent)
        self._agent = agent  # pid

    def prepare(self, command: list[str]) -> types.ModuleType:
        """Wait until the life begins, and become the process that runs `command`; the module to run it in."""
        with open(self._word) as pipe:
            text = pipe.read()
        if not text:  # the agent is gone, and this process about to be
            os._exit(1)
        word = json.loads(text)
        shim.announce(self._agent, word["rank"], word["folder"])
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


def _reset_signals() -> None:
    """torchrun handles these, so that below it a new program finds none ignored, whatever started the job (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
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
