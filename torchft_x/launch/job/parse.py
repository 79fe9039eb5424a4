"""Parses users' parameters. Each function raises `ConfigError` with one sentence that names the parameter (`what`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchft_x import net
from torchft_x.errors import ConfigError

if TYPE_CHECKING:  # the job's image may lack TorchX
    from torchx import specs

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BETWEEN_VARIABLES = re.compile(r"[,;](?=\s*[A-Za-z_]\w*=)")


def parse_bool(value: bool | str, *, what: str) -> bool:
    """Parse True or False in any case. TorchX's own booleans would silently take every other word for False."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{what} {value!r} is neither True nor False; write one of these two words.")
    return word == "true"


def parse_addresses(text: str, *, what: str) -> tuple[str, ...]:
    """Return the addresses as they were written. They are checked, but no name is resolved."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise ConfigError(f"{what} {text!r} has nothing between two commas; write HOST:PORT,HOST:PORT.")
    for word, address in zip(words, net.parse_addresses(text, what=what), strict=True):
        if address.port == 0:
            raise ConfigError(f"{what} {word!r}: port 0 is no port to connect to.")
    return words


def parse_counts(text: str, *, what: str) -> tuple[int, ...]:
    """Return the numbers, each 1 or more, of a list like 1,2,3. An empty text gives none."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isascii() and word.isdecimal() and int(word) for word in words):
        raise ConfigError(f"{what} {text!r} is not a list of numbers of 1 or more, as in 1,2,3.")
    return tuple(map(int, words))


def parse_mounts(options: Sequence[str] | str | None, *, what: str = "--mounts") -> tuple[Any, ...]:
    """Return TorchX's mounts for ``type=bind,src=PATH,dst=PATH[,readonly]`` options, as one text or split at commas."""
    words = options.split(",") if isinstance(options, str) else list(options or ())
    words = [word.strip() for option in words for word in option.split(",") if word.strip()]
    from torchx import specs

    try:
        return tuple(specs.parse_mounts(words))
    except (KeyError, ValueError) as e:
        reason = str(e.args[0]) if e.args else str(e)
        missing = reason in ("src", "dst")
        reason = f"{reason}=PATH is missing" if missing else reason
        raise ConfigError(
            f"{what} {','.join(words)}: {reason}; write type=bind,src=PATH,dst=PATH[,readonly]."
        ) from None


def parse_resource(*, cpu: int, gpu: int, memMB: int, h: str | None, what: str = "") -> specs.Resource:
    """Return the TorchX resource. `what` is the message's prefix with the owner, '' if the parameters are flags."""
    dashes = "" if what else "--"
    for name, value, least in (("cpu", cpu, 1), ("gpu", gpu, 0), ("memMB", memMB, 1)):
        if value < least:
            raise ConfigError(f"{what}{dashes}{name} is {value}; it must be {least} or more.")
    from torchx import specs

    try:
        return specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h)
    except KeyError as e:
        near = re.search(r"Did you mean `([^`]+)`", str(e))
        hint = f"did you mean {near[1]!r}?" if near else f"give {dashes}cpu, {dashes}gpu and {dashes}memMB instead."
        raise ConfigError(f"{what}{dashes}h {h!r} is no named resource that TorchX knows here; {hint}") from None


def parse_command(command: Sequence[str] | str, *, what: str) -> tuple[str, ...]:
    """Return the words of a command. Text is split by the shell's rules."""
    try:
        words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as e:
        raise ConfigError(f"{what}: the command {command!r} can't be split into words ({e}).") from None
    if not words or not all(isinstance(word, str) for word in words) or not words[0]:
        raise ConfigError(f"{what}: the command {command!r} is not a program and its arguments, all text.")
    return words


def parse_env(given: Mapping[str, str] | str | None, *, what: str) -> dict[str, str]:
    """Return the variables of ``A=1,B=2``. A comma or semicolon ends a value only if a name and ``=`` follow it.

    Raise `ConfigError` if a piece is no variable.
    """
    if not isinstance(given, str):
        return dict(given or {})
    found = {}
    for piece in _BETWEEN_VARIABLES.split(given) if given else []:
        name, equals, value = piece.partition("=")
        if not equals:
            raise ConfigError(f"{what}: {piece!r} is no variable; write A=1,B=2.")
        found[name.strip()] = "" if value in ("''", '""') else value
    return found


def check_env(env: Mapping[str, str], *, what: str, refused: Mapping[str, str]) -> None:
    """Check names and values of variables. `refused` has names that are not allowed, each with the advice for the message."""
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ConfigError(f"{what}: {name!r} is no name of a variable.")
        if name in refused:
            raise ConfigError(f"{what}: {name} can't be given here; {refused[name]}.")
        if not isinstance(value, str):
            raise ConfigError(f"{what}: {name} is {value!r}; the value of a variable is text.")
