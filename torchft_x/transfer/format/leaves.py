"""The closed set of values that may stand in a state dict beside tensors, and how users extend it.

A scalar becomes JSON: ``None``, ``bool``, ``str`` and small ``int`` as they are, everything else as a list whose
first element is a tag. Types are matched exactly, so a subclass (an ``IntEnum``, a ``defaultdict``) is never silently
turned into its base class. `flatten` encodes containers and tensors.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchft_x.errors import ConfigError, TransferError
from torchft_x.transfer.format import structured
from torchft_x.transfer.format.limits import MAX_DIMS, MAX_INT_BITS, MAX_TEXT_BYTES

Node = Any  # any value that json.loads returns
PLAIN_INT = 1 << 53  # up to here every JSON reader agrees on a number

DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")  # quantised dtypes carry a quantizer
}


class Leaf(NamedTuple):
    """A user's own type: how it is encoded as sendable values, and decoded."""

    type: type
    name: str  # on the wire; both sides must have registered it
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, Leaf] = {}
_by_name: dict[str, Leaf] = {}
_met: set[type] = set()  # types seen in our own state that were not registered


def register_leaf(
    type: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any], *, name: str | None = None
) -> None:
    """Make values of exactly `type` sendable in a state dict, in this process.

    `encode(value)` returns any sendable value (tensors and containers included). `decode` gets an equal value and
    returns the original. Neither runs anything that came from the network. `name` identifies the type on the wire
    (default ``module.qualname``). Sender and receiver must both register the type; a second call replaces the
    functions. Raises `ConfigError` for a type that is sendable as it is, or a name that another type has.
    """
    if type in BUILTIN or issubclass(type, torch.Tensor):
        raise ConfigError(f"register_leaf({type.__name__}): values of this type are sent as they are.")
    leaf = Leaf(type, name or f"{type.__module__}.{type.__qualname__}", encode, decode)
    other = _by_name.get(leaf.name)
    _met.discard(type)
    if other is not None and other.type is not type and not _same_class_again(other.type, type):
        raise ConfigError(f"register_leaf({type.__name__}): the name {leaf.name!r} belongs to {other.type!r}.")
    _by_type[type] = _by_name[leaf.name] = leaf


def _same_class_again(old: type, new: type) -> bool:
    """Return whether `new` is a later definition of `old`: a module loaded twice, a notebook cell run again."""
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


def leaf_of_type(type: type) -> Leaf | None:
    """Return how values of `type` are sent: as registered, or by structured.py (its name is known from here on)."""
    found = _by_type.get(type)
    if found is not None:
        return found
    codec = structured.codec_of(type)
    if codec is None:
        return None
    made = Leaf(type, *codec)
    other = _by_name.get(made.name)
    if other is None or (other.type in _met and _same_class_again(other.type, type)):
        _by_type[type] = _by_name[made.name] = made
        _met.add(type)
    return made


def leaf_of_name(name: str, into: Any = None) -> Leaf | None:
    """Return the leaf type `name` of this process, or None.

    It is a registered type, or a type that this process has seen in its own state. `into` is the value at the same
    place of that state.
    """
    if into is not None:
        leaf_of_type(type(into))
    try:
        codec = structured.numpy_codec(name)
    except ImportError:
        return None
    return _by_name.get(name) if codec is None else Leaf(object, *codec)


def encode_scalar(value: Any) -> Node:
    """Return a scalar as JSON. Raises `KeyError` for a type that is no scalar, `ValueError` for a value over a limit."""
    return _SCALARS[type(value)](value)


def decode_scalar(node: Node) -> Any:
    """Return the value that `encode_scalar` encoded as `node`, bit for bit. Raises `TransferError` for anything else."""
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        return _check(node, abs(node) <= PLAIN_INT)
    if isinstance(node, str):
        return _check(node, len(node) <= MAX_TEXT_BYTES)
    if not (isinstance(node, list) and len(node) == 2 and isinstance(node[0], str) and node[0] in _TAGS):
        raise TransferError(f"the manifest has a value {str(node)[:60]!r} of unknown form.")
    try:
        return _TAGS[node[0]](node[1])
    except (ValueError, TypeError, KeyError, RuntimeError, struct.error, AttributeError):
        raise TransferError(f"the manifest has a broken value {str(node)[:60]!r}.") from None


def _check(value: Any, fine: bool) -> Any:
    if not fine:
        raise TransferError(f"the manifest has a value {str(value)[:60]!r} that is over the limits.")
    return value


def _encode_int(value: int) -> Node:
    if abs(value) <= PLAIN_INT:
        return value
    if value.bit_length() > MAX_INT_BITS:
        raise ValueError(f"an int of {value.bit_length()} bits; at most {MAX_INT_BITS} can be sent")
    return ["int", hex(value)]


def _decode_int(text: str) -> int:
    if len(text) > MAX_INT_BITS // 4 + 3:
        raise ValueError("too long")
    return int(text, 16)


def _encode_str(value: str) -> Node:
    if len(value) > MAX_TEXT_BYTES:
        raise ValueError(f"a str of {len(value)} characters; at most {MAX_TEXT_BYTES} can be sent")
    # JSON would join a pair of lone surrogates into one character.
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        return ["str", value.encode("utf-8", "surrogatepass").hex()]
    return value


def _encode_bytes(value: bytes) -> Node:
    if len(value) > MAX_TEXT_BYTES:
        raise ValueError(f"bytes of length {len(value)}; at most {MAX_TEXT_BYTES} can be sent, make it a uint8 tensor")
    return ["bytes", base64.b64encode(value).decode("ascii")]


def _encode_dtype(value: torch.dtype) -> Node:
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{value} is a quantised dtype")
    return ["dtype", name]


def _decode_size(sizes: list[int]) -> torch.Size:
    if len(sizes) > MAX_DIMS or not all(type(s) is int for s in sizes):
        raise ValueError("not a size")
    return torch.Size(sizes)


_SCALARS: dict[type, Callable[[Any], Node]] = {
    type(None): lambda v: v,
    bool: lambda v: v,
    int: _encode_int,
    str: _encode_str,
    float: lambda v: ["float", struct.pack(">d", v).hex()],  # a NaN keeps its payload
    complex: lambda v: ["complex", struct.pack(">dd", v.real, v.imag).hex()],
    bytes: _encode_bytes,
    torch.dtype: _encode_dtype,
    torch.device: lambda v: ["device", str(v)],
    torch.Size: lambda v: ["size", list(v)],
}
_TAGS: dict[str, Callable[[Any], Any]] = {
    "int": _decode_int,
    "str": lambda v: bytes.fromhex(v).decode("utf-8", "surrogatepass"),
    "float": lambda v: struct.unpack(">d", bytes.fromhex(v))[0],
    "complex": lambda v: complex(*struct.unpack(">dd", bytes.fromhex(v))),
    "bytes": lambda v: base64.b64decode(v, validate=True),
    "dtype": lambda v: DTYPES[v],
    "device": lambda v: torch.device(str(v)),
    "size": _decode_size,
}
BUILTIN = frozenset([*_SCALARS, dict, list, tuple, set, frozenset])
