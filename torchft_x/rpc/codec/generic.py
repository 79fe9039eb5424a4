"""Generic codec between protobuf messages and the frozen dataclasses of `core` that they carry.

A `Codec` pairs their fields by name when it is made, at import. It raises `TypeError` for a field without a
counterpart, so that none is dropped in silence, and for an arriving field without a limit, so that none is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from torchft_x.errors import RefusedError
from torchft_x.rpc.codec.field_limits import LIMITS, TYPES, WRITERS, Convert, Limit

V = TypeVar("V")
M = TypeVar("M", bound=Message)

LOCAL = frozenset({"session", "sessions", "call", "calls", "stream", "group", "node", "sidecar"})
"""Fields that identify the stream or call and its sender. A message may lack them, because its receiver knows them."""

_codecs: dict[tuple[type, str], Codec[Any]] = {}  # by dataclass and message name; looked up for nested messages


class Codec(Generic[V]):
    """Converter of values to messages (`encode`) and back (`decode`).

    `decode` takes the fields that only the value has as keyword arguments, and raises `RefusedError`.

    Args:
        reads: The dataclass that `decode` makes.
        writes: The dataclasses that `encode` takes, if they differ from `reads`. Their fields differ at most in
            `LOCAL`.
        names: The message's field names by the dataclass's, where they differ by more than a suffix ``_s`` (seconds).
        limits: Limits by field of the dataclass; they take precedence over `LIMITS`.
        writers: Conversions by field of the dataclass; they take precedence over `WRITERS`.
        packed: Codecs by field of the dataclass, for values packed into a field of bytes. Empty bytes stand for None.
        apart: Fields of one side that the other lacks. The caller sets or passes them, or does not use them.
        check: Called with the message before any field is read. Returns None, raises `RefusedError`.
    """

    def __init__(
        self,
        message: type[Message],
        reads: type[V],
        *writes: type,
        names: Mapping[str, str] | None = None,
        limits: Mapping[str, Limit] | None = None,
        writers: Mapping[str, Convert] | None = None,
        packed: Mapping[str, Codec[Any]] | None = None,
        apart: Collection[str] = (),
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self.writes, self._message = writes or (reads,), message
        for kind in (reads, *writes):
            _codecs[kind, message.DESCRIPTOR.full_name] = self
        pairs = _pair(message, reads, names or {}, apart)
        for kind in writes:
            if _pair(message, kind, names or {}, apart) != pairs:
                raise TypeError(f"{kind.__name__} and {reads.__name__} have different fields.")
        compiler = _Compiler({**LIMITS, **(limits or {})}, {**WRITERS, **(writers or {})}, packed or {})
        hints, encode, decode, given = get_type_hints(reads), [], [], []
        for f in fields(reads):  # type: ignore[arg-type]
            if f.name in pairs:
                sent, read = compiler.field(f.name, hints[f.name], message.DESCRIPTOR.fields_by_name[pairs[f.name]])
                encode.append(f"{pairs[f.name]}={sent}")
                decode.append(read)
            elif f.init:
                decode.append(f.name)
                given.append(
                    f.name if f.default is MISSING else f"{f.name}={compiler.name('default', f.name, f.default)}"
                )
        # One expression covers all fields, as in the `__init__` that `dataclasses` makes: a loop takes up to twice the
        # time. Every name in the expression comes from this package's tables and the classes that they name.
        scope = {**compiler.scope, "message": message, "reads": reads, "check": check}
        self.encode: Callable[[Any], Any] = eval(f"lambda v: message({', '.join(encode)})", scope)
        head = ", ".join(["p", "*", *given] if given else ["p"])
        checked = "check(p) or " if check else ""
        self.decode: Callable[..., V] = eval(f"lambda {head}: {checked}reads({', '.join(decode)})", scope)

    def read(self, data: bytes, what: str) -> V:
        """Parse a message from bytes and return its value. `what` names it in errors. Raises `RefusedError`."""
        return self.decode(parse(self._message, data, what))


class _Compiler:
    """Generator of a field's two expressions: one encodes it from value `v`, the other decodes it from message `p`."""

    def __init__(
        self, limits: Mapping[str, Limit], writers: Mapping[str, Convert], packed: Mapping[str, Codec[Any]]
    ) -> None:
        self._limits, self._writers, self._packed = limits, writers, packed
        self.scope: dict[str, Any] = {}  # objects that the expressions refer to, by name

    def name(self, what: str, attribute: str, value: Any) -> str:
        self.scope[f"{what}_{attribute}"] = value
        return f"{what}_{attribute}"

    def field(self, attribute: str, hint: Any, field: FieldDescriptor) -> tuple[str, str]:
        value, arrived = f"v.{attribute}", f"p.{field.name}"
        if field.message_type is not None:  # the hint is a dataclass, a dataclass or None, or a tuple of dataclasses
            kinds = get_args(hint) or (hint,)
            codec = self.name("codec", attribute, _codecs[kinds[0], field.message_type.full_name])
            if Ellipsis in kinds:
                return f"[{codec}.encode(x) for x in {value}]", f"tuple([{codec}.decode(x) for x in {arrived}])"
            sent, read = f"{codec}.encode({value})", f"{codec}.decode({arrived})"
            if type(None) in kinds:
                return f"None if {value} is None else {sent}", f"{read} if p.HasField('{field.name}') else None"
            return sent, read
        if attribute in self._packed:
            codec = self.name("codec", attribute, self._packed[attribute])
            sent, read = f"{codec}.encode({value}).SerializeToString()", f"{codec}.read({arrived}, '{attribute}')"
            return f"b'' if {value} is None else {sent}", f"{read} if {arrived} else None"
        if attribute in self._writers:
            value = f"{self.name('write', attribute, self._writers[attribute])}({value})"
        if field.type == FieldDescriptor.TYPE_BOOL:
            return value, arrived
        if hint not in TYPES and attribute not in self._limits:
            raise TypeError(f"{attribute} of {field.containing_type.name} has no limit; see rpc/codec/field_limits.py.")
        limit = TYPES.get(hint) or self._limits[attribute]
        if limit is None:
            return value, arrived
        check, *rest = limit if isinstance(limit, tuple) else (limit,)
        return value, f"{self.name('read', attribute, check)}({', '.join([arrived, *map(repr, rest)])})"


class OneOf:
    """Codec of an envelope: a message that holds one of several messages in its ``oneof kind``."""

    def __init__(self, envelope: type[Message], **kinds: Codec[Any]) -> None:
        self._envelope, self._kinds = envelope, kinds
        self._sent = {sent: kind for kind, codec in kinds.items() for sent in codec.writes}

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
