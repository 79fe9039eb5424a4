"""Command lines: a parser that reports a usage error in one sentence, and options of our own commands.

Schedulers and launchers set such options. The words of a command after ``--`` are the user's program.
"""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error without the usage text, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def option(words: list[str], name: str) -> str | None:
    """Return the value of an option as argparse reads it, or None: the last one counts, also as ``NAME=VALUE``."""
    value = None
    for at in range(_end(words)):
        if words[at] == name:
            value = words[at + 1] if at + 1 < len(words) else None
        elif words[at].startswith(f"{name}="):
            value = words[at][len(name) + 1 :]
    return value


def set_option(words: list[str], name: str, value: str) -> None:
    """Replace the value of an option, or add the option."""
    if name in words[: _end(words)]:
        words[words.index(name) + 1] = value
    else:
        words[_end(words) : _end(words)] = [name, value]


def _end(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)
