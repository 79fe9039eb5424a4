"""Compare what must be alike in all groups that train together, and describe a difference. Values and pure functions.

A group *declares* traits: its library, its group world size, its model, its data set. Two traits are alike if their
digests are equal; the words and parts are for people. Parts (``layers.3.weight (64, 64) float32``) may be cut short,
but the digest covers them all. A name under which a group declares nothing is not compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchft_x.errors import ConfigError

LIBRARY = "torchft_x"
TORCH = "PyTorch"
WORLD_SIZE = "group world size"
MODEL = "model"
BUCKETS = "bucket layout"
DATA = "data set"
ORDER = "data order"  # which samples a step has
QUANTIZATION = "quantisation"
COMPILED = "_orig_mod"
"""Component that torch.compile(module) inserts into the names of the module's parameters."""

MAX_TRAITS = 256
"""Most traits of a group. Usual are some twenty names, a few of them different in several ranks."""
MAX_TEXT = 200
"""Most characters of a name, words or part. The longest parameter names of public models have about 120."""
MAX_PARTS = 1024
"""Most parts of one trait. A model of 100 layers has about as many parameters; of a larger one the first suffice."""
MAX_ALL_PARTS = 2048
"""Most parts of all traits together."""
MAX_CHARACTERS = 128 << 10
"""Most characters of all parts together. They travel once per session, in its first join."""
MAX_RANKS = 16384
"""Most ranks that a trait names."""
MAX_KINDS = 16
"""Most values of one trait among a group's ranks that are kept apart (a pipeline has a model per stage)."""
CUT = "..."
"""Last part of a list that was cut short."""


@dataclass(frozen=True, slots=True)
class Trait:
    """One property that must be alike in all groups."""

    name: str
    digest: str
    words: str  # for people, such as "12 tensors, 85,002 values"
    parts: tuple[str, ...] = ()  # each begins with the name of the described object
    ranks: tuple[int, ...] = ()  # group ranks that the trait holds for, in order; empty: all ranks


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All traits that a rank or a group declares, in the order in which they are compared."""

    items: tuple[Trait, ...] = ()

    def find(self, name: str, rank: int | None) -> Trait | None:
        """Return the trait of this name for the rank; None: none is declared. `rank` None: a trait of all ranks."""
        for t in self.items:
            if t.name == name and (not t.ranks or rank in t.ranks):
                return t
        return None

    def ranks(self, name: str) -> set[int]:
        """Return the ranks for which this name is declared separately; empty if all ranks are alike."""
        return {rank for t in self.items if t.name == name for rank in t.ranks}


def describe(name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> Trait:
    """Return a trait within the limits. Without a `digest`, that of the words and parts is used.

    Raises `ConfigError` if the name is empty.
    """
    if not name.strip():
        raise ConfigError("a trait needs a name, like 'data set'.")
    if not digest or len(digest) > MAX_TEXT or not digest.isprintable():
        digest = _digest([digest] if digest else [words, *parts])
    return Trait(_text(name), digest, _text(words) or "undescribed", _fit(parts, MAX_PARTS, MAX_CHARACTERS // 2))


def release(name: str, version: str) -> Trait:
    """Return the trait of a library's version. Releases of one minor series (1.4.x) match, others only themselves."""
    public = version.partition("+")[0]
    series = re.fullmatch(r"(\d+\.\d+)\.\d+", public)
    return Trait(name, _text(series[1] if series else public), _text(version))


def merge(ranks: Sequence[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of a group, merged from those of its ranks 0, 1, ...

    Ranks may differ (stages of a pipeline): each is compared with the same rank of the other groups, which it meets.
    """
    names = dict.fromkeys(t.name for traits in ranks for t in traits.items)
    return within_limits(trait for name in names for trait in _merge_one([t.find(name, None) for t in ranks]))


@dataclass(frozen=True, slots=True)
class Difference:
    """First trait in which two groups differ."""

    mine: Trait
    theirs: Trait
    rank: int | None  # group rank with the difference; None: all ranks

    def clause(self, whose: str) -> str:
        """Return a clause: ``its model has ... where group 0's has ...``. `whose`: "group 0's"."""
        mine, theirs = self.mine, self.theirs
        what = f"its {mine.name}" if self.rank is None else f"the {mine.name} of its rank {self.rank}"
        if parts := self._parts():
            sizes = f" ({mine.words}; {whose} {theirs.words})" if mine.words != theirs.words else ""
            return f"{what} has {parts[0]} where {whose} has {parts[1]}{sizes}"
        if mine.words != theirs.words:
            return f"{what} is {mine.words} where {whose} is {theirs.words}"
        return f"{what} is {mine.words} (digest {mine.digest[:12]}) where {whose} has the digest {theirs.digest[:12]}"

    def is_compiling(self) -> bool:
        """Return whether the first differing parts differ only because one group passed its module to torch.compile."""
        parts = self._parts()
        return parts is not None and without_compiled(parts[0]) == without_compiled(parts[1])

    def _parts(self) -> tuple[str, str] | None:
        """Return the first differing parts, mine and theirs; None if all known parts are alike."""
        mine, theirs = self.mine.parts, self.theirs.parts
        for i in range(max(len(mine), len(theirs))):
            a, b = (parts[i] if i < len(parts) else "nothing more" for parts in (mine, theirs))
            if CUT in (a, b):
                return None
            if a != b:
                return a, b
        return None


def without_compiled(name: str) -> str:
    """Return a parameter's name as it is without torch.compile. Text after the name stays."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def difference(mine: Fingerprint, theirs: Fingerprint) -> Difference | None:
    """Return the first difference, in the order of `mine`; None if the two groups may train together."""
    if mine is theirs:
        return None
    for name in dict.fromkeys(t.name for t in mine.items):
        apart = sorted(mine.ranks(name) | theirs.ranks(name))
        for rank in apart or (None,):
            a, b = mine.find(name, rank), theirs.find(name, rank)
            if a is not None and b is not None and a.digest != b.digest:
                return Difference(a, b, rank)
    return None


def _merge_one(by_rank: Sequence[Trait | None]) -> list[Trait]:
    kinds: dict[str, list[int]] = {}  # digest -> ranks
    first: dict[str, Trait] = {}
    for rank, trait in enumerate(by_rank):
        if trait is not None:
            kinds.setdefault(trait.digest, []).append(rank)
            first.setdefault(trait.digest, trait)
    if len(kinds) == 1:
        return list(first.values())
    if len(kinds) > MAX_KINDS:
        text = f"{len(kinds)} different ones among the group's ranks"
        name = next(iter(first.values())).name
        return [Trait(name, _digest([t.digest if t else "" for t in by_rank]), text)]
    return [replace(first[digest], ranks=tuple(ranks)) for digest, ranks in kinds.items()]


def within_limits(items: Iterable[Trait]) -> Fingerprint:
    """Return a fingerprint of these traits, with fewer parts where all parts together exceed the limits."""
    count, characters = MAX_ALL_PARTS, MAX_CHARACTERS
    kept: list[Trait] = []
    for trait in list(items)[:MAX_TRAITS]:
        parts = _fit(trait.parts, min(count, MAX_PARTS), characters)
        count -= len(parts)
        characters -= sum(map(len, parts))
        kept.append(trait if len(parts) == len(trait.parts) else replace(trait, parts=parts))
    return Fingerprint(tuple(kept))


def _fit(parts: Sequence[str], count: int, characters: int) -> tuple[str, ...]:
    """Return as many of the parts as the limits allow, with `CUT` in place of the rest."""
    kept: list[str] = []
    for text in map(_text, parts):
        if len(kept) >= count or len(text) > characters:
            break
        kept.append(text)
        characters -= len(text)
    if len(kept) == len(parts):
        return tuple(kept)
    while kept and (len(kept) >= count or characters < len(CUT)):
        characters += len(kept.pop())
    return (*kept, CUT) if count > 0 and characters >= len(CUT) else ()


def _text(text: str) -> str:
    """Return the text as one printable line of at most `MAX_TEXT` characters."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - len(CUT)]}{CUT}"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:32]
