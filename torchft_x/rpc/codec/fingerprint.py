"""What a group declares (`core.fingerprint`), to the wire and back. Nothing that arrives is trusted; see `messages`.

The sender cuts what is too long; whoever sends more than the limits is not ours, and is refused with a sentence.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from torchft_x.core import fingerprint as t
from torchft_x.errors import RefusedError
from torchft_x.rpc.proto import torchft_x_pb2 as pb


def to_proto(traits: t.Fingerprint) -> pb.Traits:
    return pb.Traits(
        traits=[
            pb.Trait(name=x.name, digest=x.digest, words=x.words, parts=x.parts, ranks=x.ranks) for x in traits.items
        ]
    )


def from_proto(p: pb.Traits) -> t.Fingerprint:
    """Raises `RefusedError`."""
    _limit(len(p.traits), t.MAX_TRAITS, "traits")
    parts = [part for x in p.traits for part in x.parts]
    _limit(len(parts), t.MAX_ALL_PARTS, "parts of traits")
    _limit(sum(map(len, parts)), t.MAX_CHARACTERS, "characters in parts of traits")
    return t.Fingerprint(tuple(_trait(x) for x in p.traits))


def from_bytes(data: bytes) -> t.Fingerprint:
    """Raises `RefusedError`."""
    try:
        return from_proto(pb.Traits.FromString(data))
    except DecodeError:
        raise RefusedError("A message was refused: what it declares is not a Traits message.") from None


def _trait(p: pb.Trait) -> t.Trait:
    for text in (p.name, p.digest, p.words):
        if not text or not text.isprintable():
            raise RefusedError("A message was refused: a trait's name, digest or words are empty or unprintable.")
    for text in (p.name, p.digest, p.words, *p.parts):
        _limit(len(text), t.MAX_TEXT, "characters in a trait's text")
    if not all(map(str.isprintable, p.parts)):
        raise RefusedError("A message was refused: a part of a trait holds unprintable characters.")
    _limit(len(p.ranks), t.MAX_RANKS, "ranks of a trait")
    _limit(max(p.ranks, default=0), t.MAX_RANKS, "as a rank of a trait")
    return t.Trait(p.name, p.digest, p.words, tuple(p.parts), tuple(p.ranks))


def _limit(count: int, most: int, what: str) -> None:
    if count > most:
        raise RefusedError(f"A message was refused: {count} {what}, at most {most} are allowed.")
