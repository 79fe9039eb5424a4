"""Collects the traits that must be alike in all groups (`core.fingerprint`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from torchft_x._version import __version__
from torchft_x.comm.quantized.format import Format
from torchft_x.core.fingerprint import (
    LIBRARY,
    QUANTIZATION,
    TORCH,
    WORLD_SIZE,
    Fingerprint,
    Trait,
    describe,
    release,
    within_limits,
)
from torchft_x.errors import ConfigError


class FingerprintBuilder:
    """Fingerprint that grows until training begins. Traits named in `may_differ` are left out and not compared."""

    def __init__(self, world_size: int, may_differ: Collection[str]) -> None:
        if isinstance(may_differ, str):
            raise ConfigError(f"may_differ is {may_differ!r}; give a tuple of names: ({may_differ!r},).")
        self._may_differ = frozenset(may_differ)
        self._count: dict[str, int] = {}  # number of declarations by name
        self._quantization: str | None = None  # a format's name or "none"; None before it is declared
        self.traits = Fingerprint()  # replaced by each `add`
        self._append(release(LIBRARY, __version__))
        self._append(release(TORCH, str(torch.__version__)))
        self.add(WORLD_SIZE, str(world_size))

    def add(self, name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> None:
        """Add a trait. Raises `ConfigError` if it has no name."""
        nth = self._count[name] = self._count.get(name, 0) + 1
        if name not in self._may_differ:
            self._append(describe(name if nth == 1 else f"{name} {nth}", words, parts, digest))

    def has(self, name: str) -> bool:
        """Return whether a trait of this name was added."""
        return name in self._count

    def quantizes(self, fmt: Format | None) -> None:
        """Declare the format of this group's reductions (None: full precision).

        Raises `ConfigError` if another format was declared before.
        """
        name = "none" if fmt is None else fmt.name
        if self._quantization is None:
            self._quantization = name
            self.add(QUANTIZATION, name)
        elif name != self._quantization:
            raise ConfigError(
                f"this group has declared quantisation {self._quantization}, and {name} is asked for; use one format in "
                "the whole job (declare_quantization, should_quantize): a group that sends another one is not understood."
            )

    def _append(self, trait: Trait) -> None:
        if trait.name not in self._may_differ:
            self.traits = within_limits((*self.traits.items, trait))
