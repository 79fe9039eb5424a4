"""Leaves that need no `register_leaf`: enums, dataclasses, named tuples, defaultdicts, numpy's arrays and scalars.

A type's name comes over the network, its class never does. Names are looked up among the types in this process's own
state dict (its groups have the same keys), and nothing is imported or called by a name. Decoding sets fields and runs
no code of the class.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from torchft_x.transfer.format.limits import MAX_DIMS

_ARRAY, _SCALAR = "numpy.ndarray", "numpy.generic"
_DTYPE = re.compile(r"[<>|=]([biufcSUmM])[0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_HEAP_TYPE = 1 << 9  # flag of a class written in Python; a subclass of, say, dict holds more than its fields
_FACTORIES: dict[str, Any] = {t.__name__: t for t in (bool, bytes, complex, dict, float, int, list, set, str, tuple)}

Codec = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]  # name on the wire, encode, decode


def codec_of(type: type) -> Codec | None:
    """Return how values of exactly `type` are encoded; None if they can't be."""
    numpy = sys.modules.get("numpy")  # no array exists before numpy is imported
    if numpy is not None and type is numpy.ndarray:
        return (_ARRAY, _encode_array, _decode_array)
    if numpy is not None and issubclass(type, numpy.generic):
        return (_SCALAR, _encode_scalar, _decode_scalar)
    name = f"{type.__module__}.{type.__qualname__}"
    if issubclass(type, Enum):
        return (name, lambda value: _name_of(value), lambda text: type.__members__[text])
    if dataclasses.is_dataclass(type) and all(c is object or c.__flags__ & _HEAP_TYPE for c in type.__mro__):
        return (name, _encode_dataclass, lambda values: _decode_dataclass(type, values))
    if type.__bases__ == (tuple,) and isinstance(getattr(type, "_fields", None), tuple):
        return (name, _encode_named_tuple, lambda values: _decode_named_tuple(type, values))
    return None


def numpy_codec(name: str) -> Codec | None:
    """Return the codec of one of numpy's types, whose names are always known. Raises `ImportError` without numpy."""
    if name not in (_ARRAY, _SCALAR):
        return None
    import numpy

    return codec_of(numpy.ndarray if name == _ARRAY else numpy.float32)


# --- classes of users -------------------------------------------------------------------------------------------------


def _name_of(value: Any) -> str:
    if value.name not in type(value).__members__:
        raise ValueError(f"{value!r} is no single member of {type(value).__name__}")  # a combination of flags
    return str(value.name)


def _encode_dataclass(value: Any) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(value)]
    more = sorted(set(getattr(value, "__dict__", ())) - set(names))
    if more:
        raise ValueError(f"a {type(value).__name__} with {more[0]!r}, which is none of its fields; it would be lost")
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise ValueError(f"a {type(value).__name__} whose field {missing[0]!r} is not set")
    return {name: getattr(value, name) for name in names}


def _decode_dataclass(type: type, values: Any) -> Any:
    names = [f.name for f in dataclasses.fields(type)]
    if not isinstance(values, dict) or sorted(values) != sorted(names):
        raise ValueError(f"it has other fields than {type.__name__} here: {str(names)[:200]}")
    made: Any = object.__new__(type)
    for name in names:
        object.__setattr__(made, name, values[name])  # also of a frozen one; __init__ and __post_init__ don't run
    return made


def _encode_named_tuple(value: Any) -> list[Any]:
    if getattr(value, "__dict__", None):
        raise ValueError(f"a {type(value).__name__} with attributes that are no fields; they would be lost")
    return list(value)


def _decode_named_tuple(type: Any, values: Any) -> Any:
    if not isinstance(values, list) or len(values) != len(type._fields):
        raise ValueError(f"it has other fields than {type.__name__} here: {str(type._fields)[:200]}")
    return tuple.__new__(type, values)


# --- defaultdict ------------------------------------------------------------------------------------------------------

_met: dict[tuple[str, str], Any] = {}  # (path in the state dict, name) -> factory of this process


def name_of_factory(value: defaultdict[Any, Any], path: str) -> str:
    """Return the name of a defaultdict's factory, and remember the factory for `factory_of`.

    Raises `ValueError` for a factory that can't be found again by its name.
    """
    factory = value.default_factory
    if factory is None:
        return ""
    name = getattr(factory, "__qualname__", None)
    if not isinstance(name, str):
        raise ValueError(f"a defaultdict whose factory {str(factory)[:100]} has no name; make it a function")
    if _FACTORIES.get(name) is not factory:
        _met[path, name] = factory
    return name


def factory_of(name: Any, path: str, into: Any) -> Any:
    """Return the factory `name`. Raises `KeyError` if this process has none at this place of its own state."""
    if name == "":
        return None
    own = into.default_factory if isinstance(into, defaultdict) else None
    if own is not None and getattr(own, "__qualname__", None) == name:
        return own
    return _met[path, name] if (path, name) in _met else _FACTORIES[name]


# --- numpy ------------------------------------------------------------------------------------------------------------


def _dtype_text(dtype: Any) -> str:
    text = str(dtype.str)
    if _DTYPE.fullmatch(text) is None or dtype.itemsize == 0:
        raise ValueError(f"numpy values of dtype {dtype}; only numbers, times and text of fixed size can be sent")
    return text


def _dtype_of(text: Any) -> Any:
    import numpy

    if not isinstance(text, str) or _DTYPE.fullmatch(text) is None:
        raise ValueError(f"not a dtype: {str(text)[:60]!r}")
    return numpy.dtype(text)


def _encode_array(value: Any) -> tuple[str, torch.Size, torch.Tensor]:
    import numpy

    text = _dtype_text(value.dtype)
    flat = numpy.ascontiguousarray(value).reshape(-1)
    if not flat.flags.writeable:
        flat = flat.copy()  # torch warns of tensors over read-only memory
    return (text, torch.Size(value.shape), torch.from_numpy(flat.view(numpy.uint8)))


def _decode_array(values: Any) -> Any:
    text, shape, data = values
    dtype = _dtype_of(text)
    plain = isinstance(data, torch.Tensor) and data.dtype == torch.uint8 and data.dim() == 1
    if not plain or not isinstance(shape, torch.Size) or len(shape) > MAX_DIMS:
        raise ValueError("not an array")
    return data.numpy().copy().view(dtype).reshape(tuple(shape))


def _encode_scalar(value: Any) -> tuple[str, bytes]:
    return (_dtype_text(value.dtype), value.tobytes())


def _decode_scalar(values: Any) -> Any:
    import numpy

    text, data = values
    (value,) = numpy.frombuffer(data, dtype=_dtype_of(text))
    return value
