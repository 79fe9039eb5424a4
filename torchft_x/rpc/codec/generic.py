"""Generic codec between protobuf messages and the frozen dataclasses of `core` that they carry.

A `Codec` pairs their fields by name when it is made, at import. It raises `TypeError` for a field without a
counterpart, so that none is dropped in silence, and for an arriving list or bytes without a limit, so that none is
trusted. Single values have a limit by their type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from torchft_x.errors import RefusedError
from torchft_x.rpc.codec.field_limits import LIMITS, USUAL, WRITERS, Convert, Limit

V = TypeVar("V")
M = TypeVar("M", bound=Message)

LOCAL = frozenset({"session", "sessions", "call", "calls", "stream", "group", "node", "sidecar"})
"""Fields that identify the stream or call and its sender. A message may lack them, because its receiver knows them."""

_codecs: dict[tuple[type, str], Codec[Any]] = {}  # by dataclass and message name; looked up for nested messages


class Codec(Generic[V]):
    """Converter of values to messages (`encode`) and back (`decode`).

    `decode` takes the fields that only the value has as keyword arguments, and raises `RefusedError`.

    Args:
        kind: The dataclass that `decode` makes and `encode` takes.
        names: The message's field names by the dataclass's, where they differ by more than a suffix ``_s`` (seconds).
        limits: Limits by field of the dataclass; they take precedence over `LIMITS` and `USUAL`.
        writers: Conversions by field of the dataclass; they take precedence over `WRITERS`.
        apart: Fields of one side that the other lacks. The caller sets or passes them, or does not use them.
        check: Called with the message before any field is read. Returns None, raises `RefusedError`.
    """

    def __init__(
        self,
        message: type[Message],
        kind: type[V],
        *,
        names: Mapping[str, str] | None = None,
        limits: Mapping[str, Limit] | None = None,
        writers: Mapping[str, Convert] | None = None,
        apart: Collection[str] = (),
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self.kind, self._message, self._check = kind, message, check
        _codecs[kind, message.DESCRIPTOR.full_name] = self
        pairs = _pair(message, kind, names or {}, apart)
        self._sent: list[tuple[str, Convert]] = []  # (message's field, function of the value)
        self._read: list[tuple[str, Convert]] = []  # (attribute, function of the message)
        tables = {**LIMITS, **(limits or {})}, {**WRITERS, **(writers or {})}
        hints = get_type_hints(kind)
        for attribute, name in pairs.items():
            field = message.DESCRIPTOR.fields_by_name[name]
            sent, read = _conversions(attribute, hints[attribute], field, *tables)
            self._sent.append((name, sent))
            self._read.append((attribute, read))

    def encode(self, value: Any) -> Any:
        """Convert a value to a message. Defaults are not set, which saves a quarter of the time."""
        return self._message(**{name: content for name, sent in self._sent if (content := sent(value))})

    def decode(self, message: Any, **given: Any) -> V:
        """Convert a message to a value. `given`: the fields that only the value has. Raises `RefusedError`."""
        if self._check is not None:
            self._check(message)
        return self.kind(**given, **{attribute: read(message) for attribute, read in self._read})

    def read(self, data: bytes, what: str) -> V:
        """Parse a message from bytes and return its value. `what` names it in errors. Raises `RefusedError`."""
        return self.decode(parse(self._message, data, what))


def _conversions(
    attribute: str,
    hint: Any,
    field: FieldDescriptor,
    limits: Mapping[str, Limit],
    writers: Mapping[str, Convert],
) -> tuple[Convert, Convert]:
    """Return the functions that get a field's content from a value, to be sent, and from a message that has arrived."""
    name = field.name
    value_of, arrived_in = attrgetter(attribute), attrgetter(name)
    if field.message_type is not None:  # the hint is a dataclass, a dataclass or None, or a tuple of dataclasses
        kinds = get_args(hint) or (hint,)
        codec = _codecs[kinds[0], field.message_type.full_name]
        if Ellipsis in kinds:
            return lambda v: [codec.encode(x) for x in value_of(v)], lambda p: tuple(
                [codec.decode(x) for x in arrived_in(p)]
            )
        if type(None) in kinds:
            return (
                lambda v: None if value_of(v) is None else codec.encode(value_of(v)),
                lambda p: codec.decode(arrived_in(p)) if p.HasField(name) else None,
            )
        return lambda v: codec.encode(value_of(v)), lambda p: codec.decode(arrived_in(p))
    write = writers.get(attribute)
    sent = value_of if write is None else lambda v: write(value_of(v))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return sent, arrived_in
    if attribute not in limits and hint not in USUAL:
        raise TypeError(f"{attribute} of {field.containing_type.name} has no limit; see rpc/codec/field_limits.py.")
    limit = limits[attribute] if attribute in limits else (USUAL[hint], f"{field.containing_type.name}.{name}")
    if limit is None:
        return sent, arrived_in
    check, *rest = limit if isinstance(limit, tuple) else (limit,)
    return sent, (lambda p: check(arrived_in(p), *rest)) if rest else (lambda p: check(arrived_in(p)))


class OneOf:
    """Codec of an envelope: a message that holds one of several messages in its ``oneof kind``."""

    def __init__(self, envelope: type[Message], **kinds: Codec[Any]) -> None:
        self._envelope, self._kinds = envelope, kinds
        self._sent = {codec.kind: kind for kind, codec in kinds.items()}

    def encode(self, value: Any) -> Any:
        kind = self._sent[type(value)]
        return self._envelope(**{kind: self._kinds[kind].encode(value)})

    def decode(self, envelope: Any, **given: Any) -> Any:
        """Return the value in the envelope, or None if its kind is unknown. Raises `RefusedError`."""
        kind = envelope.WhichOneof("kind")
        return self._kinds[kind].decode(getattr(envelope, kind), **given) if kind in self._kinds else None


def parse(kind: type[M], data: bytes, what: str) -> M:
    """Parse bytes as a message. `what` names it in errors. Raises `RefusedError`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RefusedError(f"The {what} is not a {kind.__name__} message; is the sender another program?") from None


def _pair(message: type[Message], kind: Any, names: Mapping[str, str], apart: Collection[str]) -> dict[str, str]:
    """Return the message's field names by the dataclass's. Raises `TypeError` for a field without a counterpart."""
    known = message.DESCRIPTOR.fields_by_name
    pairs = {f.name: names.get(f.name, f.name) for f in fields(kind) if f.init and f.name not in apart}
    pairs = {a: name if name in known else f"{name}_s" for a, name in pairs.items() if name in known or a not in LOCAL}
    lost = [a for a, name in pairs.items() if name not in known]
    lost += sorted(set(known) - set(pairs.values()) - set(apart))
    if lost:
        raise TypeError(f"{', '.join(lost)}: not in both {kind.__name__} and message {message.DESCRIPTOR.name}.")
    return pairs
