"""Dataclasses from JSON that `dataclasses.asdict` gave, with all types checked: a file may be torn or another version's."""

from __future__ import annotations

import dataclasses
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def from_json(kind: type[T], found: Any) -> T:
    """Return the value of a dataclass. Ignore unknown fields, and raise `ValueError` for JSON of any other shape."""
    try:
        made: T = _made(kind, found)
    except (AttributeError, KeyError, TypeError) as e:
        raise ValueError(f"no {kind.__name__}: {e}") from None
    return made


def _made(kind: Any, found: Any) -> Any:
    args = get_args(kind)
    hints = get_type_hints(kind) if dataclasses.is_dataclass(kind) else None
    if hints is not None:
        return kind(**{name: _made(hint, found[name]) for name, hint in hints.items()})
    if get_origin(kind) is UnionType:  # TYPE | None
        return None if found is None else _made(args[0], found)
    if get_origin(kind) is dict:
        return {name: _made(args[1], value) for name, value in found.items()}
    if get_origin(kind) is tuple:
        kinds = args[:1] * len(found) if args[1:] == (...,) else args
        return tuple(_made(one, value) for one, value in zip(kinds, found, strict=True))
    if issubclass(kind, tuple):  # a NamedTuple
        return kind(*(_made(one, value) for one, value in zip(get_type_hints(kind).values(), found, strict=True)))
    wanted = (int, float) if kind is float else kind
    if not isinstance(found, wanted) or isinstance(found, bool) is not (kind is bool):
        raise TypeError(f"{found!r:.80} is no {kind.__name__}")
    return found
