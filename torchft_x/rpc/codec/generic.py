"""Between a message of protobuf and the frozen dataclasses of `core` that it carries: one codec for all of them.

A `Codec` pairs their fields by name when it is made, at import. A field without a place on the other side, or one that
arrives and has no limit, is a `TypeError` there: nothing is dropped in silence, and nothing that arrives is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from torchft_x.errors import RefusedError
from torchft_x.rpc.codec.field_limits import LIMITS, TYPES, WRITERS, Convert, Limit

V = TypeVar("V")
M = TypeVar("M", bound=Message)

LOCAL = frozenset({"session", "sessions", "call", "calls", "stream", "group", "node", "companion"})
"""Whose stream or call it is, and who speaks on it: where the message lacks it, whoever reads it knows."""

_codecs: dict[tuple[type, str], Codec[Any]] = {}  # by dataclass and name of the message: those that lie in others


class Codec(Generic[V]):
    """Makes a `message` of a value, and a `reads` of a message.

    Args:
        writes: The dataclasses that are sent, where they are others. All have the same fields, but for `LOCAL`.
        names: The message's names of fields, where they are others and not only end in ``_s`` (seconds).
        limits: By field of the dataclass; they go before `LIMITS`.
        writers: By field of the dataclass; they go before `WRITERS`.
        apart: Fields of one that the other lacks: the caller gives them, or has no use for them.
        check: Is given the message before any of it is read. Raises `RefusedError`.
    """

    def __init__(
        self,
        message: type[Message],
        reads: type[V],
        *writes: type,
        names: Mapping[str, str] | None = None,
        limits: Mapping[str, Limit] | None = None,
        writers: Mapping[str, Convert] | None = None,
        apart: Collection[str] = (),
        check: Convert | None = None,
    ) -> None:
        self.writes, self._message, self._reads, self._check = writes or (reads,), message, reads, check
        for kind in (reads, *writes):
            _codecs[kind, message.DESCRIPTOR.full_name] = self
        self._names = _pair(message, reads, names or {}, apart)
        for kind in writes:
            if _pair(message, kind, names or {}, apart) != self._names:
                raise TypeError(f"{kind.__name__} and {reads.__name__} have different fields.")
        self._attributes_of, self._fields_of = _getter(*self._names), _getter(*self._names.values())
        self._encoders: list[tuple[str, Convert]] = []  # field of the message, and what is put there
        self._decoders: list[tuple[str, Convert]] = []  # field of the dataclass, and what is made of what arrives
        self._optional: list[tuple[str, str, Convert]] = []
        for attribute, hint in get_type_hints(reads).items():
            if attribute in self._names:
                self._compile(attribute, hint, {**LIMITS, **(limits or {})}, {**WRITERS, **(writers or {})})

    def encode(self, value: Any, **instead: Any) -> Any:
        """The message. `instead`: fields of it that are not the value's."""
        made = dict(zip(self._names.values(), self._attributes_of(value), strict=True), **instead)
        for name, write in self._encoders:
            made[name] = write(made[name])
        return self._message(**made)

    def decode(self, message: Any, **given: Any) -> V:
        """The value. `given`: fields that are not in the message. Raises `RefusedError`."""
        if self._check is not None:
            self._check(message)
        made = dict(zip(self._names, self._fields_of(message), strict=True), **given)
        for attribute, read in self._decoders:
            made[attribute] = read(made[attribute])
        for attribute, name, read in self._optional:
            made[attribute] = read(made[attribute]) if message.HasField(name) else None
        return self._reads(**made)

    def _compile(self, attribute: str, hint: Any, limits: Mapping[str, Limit], writers: Mapping[str, Convert]) -> None:
        name = self._names[attribute]
        field = self._message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None:  # a dataclass, such a one or None, or a tuple of them
            kinds = get_args(hint) or (hint,)
            codec = _codecs[kinds[0], field.message_type.full_name]
            encode, decode = codec.encode, codec.decode
            if Ellipsis in kinds:
                self._encoders.append((name, lambda values: [encode(v) for v in values]))
                self._decoders.append((attribute, lambda values: tuple([decode(v) for v in values])))
            elif type(None) in kinds:
                self._encoders.append((name, lambda value: None if value is None else encode(value)))
                self._optional.append((attribute, name, decode))
            else:
                self._encoders.append((name, encode))
                self._decoders.append((attribute, decode))
            return
        if attribute in writers:
            self._encoders.append((name, writers[attribute]))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return
        if hint not in TYPES and attribute not in limits:
            raise TypeError(f"{self._reads.__name__}.{attribute} has no limit; see rpc/codec/field_limits.py.")
        if (limit := TYPES.get(hint) or limits[attribute]) is not None:
            self._decoders.append((attribute, limit if callable(limit) else _bind(*limit)))


class OneOf:
    """An envelope: a message with one of several in its ``oneof kind``."""

    def __init__(self, envelope: type[Message], **kinds: Codec[Any]) -> None:
        self._envelope, self._kinds = envelope, kinds
        self._sent = {sent: kind for kind, codec in kinds.items() for sent in codec.writes}

    def encode(self, value: Any) -> Any:
        kind = self._sent[type(value)]
        return self._envelope(**{kind: self._kinds[kind].encode(value)})

    def decode(self, envelope: Any, **given: Any) -> Any:
        """What is in it; None for something else. Raises `RefusedError`."""
        kind = envelope.WhichOneof("kind")
        return self._kinds[kind].decode(getattr(envelope, kind), **given) if kind in self._kinds else None


def parse(kind: type[M], data: bytes, what: str) -> M:
    """Bytes as a message. Raises `RefusedError`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RefusedError(f"The {what} is not a {kind.__name__} message; is the sender another program?") from None


def _pair(message: type[Message], kind: Any, names: Mapping[str, str], apart: Collection[str]) -> dict[str, str]:
    """The message's names by the dataclass's. Raises `TypeError` for a field of one that has no place in the other."""
    known = message.DESCRIPTOR.fields_by_name
    pairs = {f.name: names.get(f.name, f.name) for f in fields(kind) if f.init and f.name not in apart}
    pairs = {a: name if name in known else f"{name}_s" for a, name in pairs.items() if name in known or a not in LOCAL}
    lost = [a for a, name in pairs.items() if name not in known]
    lost += set(known) - set(pairs.values()) - set(apart)
    if lost:
        raise TypeError(f"{', '.join(lost)}: not in both {kind.__name__} and message {message.DESCRIPTOR.name}.")
    return pairs


def _getter(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    """Of all these attributes of an object, as a tuple."""
    get = attrgetter(*names) if names else lambda _: ()
    return get if len(names) != 1 else lambda value: (get(value),)


def _bind(check: Callable[..., Any], what: str, *limit: int) -> Convert:
    return (lambda value: check(value, what, *limit)) if limit else lambda value: check(value, what)
