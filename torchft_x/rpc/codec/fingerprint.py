"""Codec of the traits that a group declares (`core.fingerprint`). Everything that arrives is checked; see `generic`.

Our senders cut texts that are too long. A sender that exceeds the limits is another program, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchft_x.core import fingerprint as t
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec.generic import Codec
from torchft_x.rpc.proto import torchft_x_pb2 as pb


def _text(value: str) -> str:
    if not value or not value.isprintable():
        raise RefusedError("A message was refused: a trait's name, digest or words are empty or unprintable.")
    _limit(len(value), t.MAX_TEXT, "characters in a trait's text")
    return value


def _parts(values: Sequence[str]) -> tuple[str, ...]:
    _limit(max(map(len, values), default=0), t.MAX_TEXT, "characters in a trait's text")
    if not all(map(str.isprintable, values)):
        raise RefusedError("A message was refused: a part of a trait holds unprintable characters.")
    return tuple(values)


def _ranks(values: Sequence[int]) -> tuple[int, ...]:
    _limit(len(values), t.MAX_RANKS, "ranks of a trait")
    _limit(max(values, default=0), t.MAX_RANKS, "as a rank of a trait")
    return tuple(values)


def _check_all(p: pb.Traits) -> None:
    _limit(len(p.traits), t.MAX_TRAITS, "traits")
    parts = [part for x in p.traits for part in x.parts]
    _limit(len(parts), t.MAX_ALL_PARTS, "parts of traits")
    _limit(sum(map(len, parts)), t.MAX_CHARACTERS, "characters in parts of traits")


def _limit(count: int, most: int, what: str) -> None:
    if count > most:
        raise RefusedError(f"A message was refused: {count} {what}, at most {most} are allowed.")


Codec(pb.Trait, t.Trait, limits={"name": _text, "digest": _text, "words": _text, "parts": _parts, "ranks": _ranks})
TRAITS = Codec(pb.Traits, t.Fingerprint, names={"items": "traits"}, check=_check_all)
