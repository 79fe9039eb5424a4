"""Run a script written for torchft on torchft_x: ``python -m torchft_x.compat script.py [ARG...]``.

It starts Python again with the folder `path` first in PYTHONPATH, so that the script starts as usual, and its child
processes use torchft_x, too. A launcher may set that variable itself: ``--path`` prints the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from torchft_x import env
from torchft_x.compat.modules import HERE

PATH = Path(__file__).with_name("path")
_USAGE = """python -m torchft_x.compat SCRIPT.py [ARG...]        runs a script that imports torchft
python -m torchft_x.compat -m MODULE [ARG...]        runs a module
python -m torchft_x.compat -c COMMAND [ARG...]
python -m torchft_x.compat --path                    prints what must stand first in PYTHONPATH for other ways to start
"""


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    if words[:1] == ["--path"]:
        print(PATH)
        return 0
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    os.execve(sys.executable, command(sys.orig_argv, words), env.with_python_path(str(PATH)))


def command(started: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return this process's command line, with Python's flags, and `words` instead of ``-m torchft_x.compat ...``."""
    flags = list(started[1 : len(started) - len(words)])
    if flags[-2:] == ["-m", HERE]:
        flags = flags[:-2]
    elif flags and flags[-1] == f"-m{HERE}":
        flags = flags[:-1]
    return [sys.executable, *flags, *words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
