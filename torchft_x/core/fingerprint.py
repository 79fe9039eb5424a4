"""What must be alike in all groups that train together, and how a difference is told. Values and pure functions.

A group *declares* traits: its library, its group world size, its model, its data set. Two are alike if their digests
are; the words and parts are for people. Parts (``layers.3.weight (64, 64) float32``) may be cut short, the digest
covers them all. Nothing declared under a name means: not compared.
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
QUANTIZATION = "quantisation"
COMPILED = "_orig_mod"
"""What torch.compile(module) puts into the names of what the module holds."""

MAX_TRAITS = 256
"""Of a group: some twenty names, a few of them different in several ranks."""
MAX_TEXT = 200
"""Characters of a name, words or part. The longest parameter names of public models have about 120."""
MAX_PARTS = 1024
"""Of one trait. A model of 100 layers has about as many parameters; of a larger one the first say enough."""
MAX_ALL_PARTS = 2048
MAX_CHARACTERS = 128 << 10
"""Of all parts together. They travel once per session, in its first join."""
MAX_RANKS = 16384
"""Ranks a trait names."""
MAX_KINDS = 16
"""Different values of one trait among a group's ranks that are told apart (a pipeline has a model per stage)."""
CUT = "..."
"""The last part of a list that was cut short."""


@dataclass(frozen=True, slots=True)
class Trait:
    """One thing that must be alike."""

    name: str
    digest: str
    words: str  # "12 tensors, 85,002 values"
    parts: tuple[str, ...] = ()  # each begins with the name of what it describes
    ranks: tuple[int, ...] = ()  # group ranks it holds for, in order; empty: all of them


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All that a rank, or a group, declares. In the order in which they are compared."""

    items: tuple[Trait, ...] = ()

    def find(self, name: str, rank: int | None) -> Trait | None:
        """The trait of this name that holds for the rank; None: nothing is declared. `rank` None: for all ranks."""
        for t in self.items:
            if t.name == name and (not t.ranks or rank in t.ranks):
                return t
        return None

    def ranks(self, name: str) -> set[int]:
        """Ranks for which this name is declared apart from the others; empty if all are alike."""
        return {rank for t in self.items if t.name == name for rank in t.ranks}


def describe(name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> Trait:
    """A trait within the limits. Without a digest that of the words and parts is taken.

    Raises `ConfigError` if the name is empty.
    """
    if not name.strip():
        raise ConfigError("a trait needs a name, like 'data set'.")
    if not digest or len(digest) > MAX_TEXT or not digest.isprintable():
        digest = _digest([digest] if digest else [words, *parts])
    return Trait(_text(name), digest, _text(words) or "undescribed", _fit(parts, MAX_PARTS, MAX_CHARACTERS // 2))


def release(name: str, version: str) -> Trait:
    """A library's version. Releases of one minor series (1.4.x) train together, any other version only with itself."""
    public = version.partition("+")[0]
    series = re.fullmatch(r"(\d+\.\d+)\.\d+", public)
    return Trait(name, _text(series[1] if series else public), _text(version))


def merge(ranks: Sequence[Fingerprint]) -> Fingerprint:
    """What a group declares, from what its ranks 0, 1, ... do.

    Ranks may differ (stages of a pipeline): each meets its own rank in the other groups, and is compared with it.
    """
    names = dict.fromkeys(t.name for traits in ranks for t in traits.items)
    return within_limits(trait for name in names for trait in _merge_one([t.find(name, None) for t in ranks]))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first trait in which two groups differ."""

    mine: Trait
    theirs: Trait
    rank: int | None  # the group rank it is about; None: all of them

    def clause(self, whose: str) -> str:
        """``its model has ... where group 0's has ...``. `whose`: "group 0's"."""
        mine, theirs = self.mine, self.theirs
        what = f"its {mine.name}" if self.rank is None else f"the {mine.name} of its rank {self.rank}"
        if parts := self._parts():
            sizes = f" ({mine.words}; {whose} {theirs.words})" if mine.words != theirs.words else ""
            return f"{what} has {parts[0]} where {whose} has {parts[1]}{sizes}"
        if mine.words != theirs.words:
            return f"{what} is {mine.words} where {whose} is {theirs.words}"
        return f"{what} is {mine.words} (digest {mine.digest[:12]}) where {whose} has the digest {theirs.digest[:12]}"

    def is_compiling(self) -> bool:
        """Whether the first parts that differ do so by torch.compile only, to which one of the two has given the module."""
        parts = self._parts()
        return parts is not None and without_compiled(parts[0]) == without_compiled(parts[1])

    def _parts(self) -> tuple[str, str] | None:
        """The first that differ, mine and theirs; None if those that are known are alike."""
        mine, theirs = self.mine.parts, self.theirs.parts
        for i in range(max(len(mine), len(theirs))):
            a, b = (parts[i] if i < len(parts) else "nothing more" for parts in (mine, theirs))
            if CUT in (a, b):
                return None
            if a != b:
                return a, b
        return None


def without_compiled(name: str) -> str:
    """A parameter's name as it is without torch.compile. Words after the name stay."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def difference(mine: Fingerprint, theirs: Fingerprint) -> Difference | None:
    """The first difference, in the order of mine; None if the two may train together."""
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
    """All of these, with fewer parts where they are too many together."""
    count, characters = MAX_ALL_PARTS, MAX_CHARACTERS
    kept: list[Trait] = []
    for trait in list(items)[:MAX_TRAITS]:
        parts = _fit(trait.parts, min(count, MAX_PARTS), characters)
        count -= len(parts)
        characters -= sum(map(len, parts))
        kept.append(trait if len(parts) == len(trait.parts) else replace(trait, parts=parts))
    return Fingerprint(tuple(kept))


def _fit(parts: Sequence[str], count: int, characters: int) -> tuple[str, ...]:
    """As many of the parts as the limits allow, with `CUT` in the place of the rest."""
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
    """One printable line of at most `MAX_TEXT` characters."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - len(CUT)]}{CUT}"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:32]
