"""The position of a training in its data set, or in its streams: equal in all groups, and changed by commits only."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from torchft_x.core.data.options import DataOptions, Tail
from torchft_x.core.data.ranges import members, ranges, without
from torchft_x.core.types import Ranges
from torchft_x.errors import ConfigError

_VERSION = 1
_STREAMS = "streams"  # begins the JSON of a `StreamState`
_OTHER_KIND = (
    "the saved position is one in streams and this run deals the samples of a data set, or the other way round; use the kind "
    "of loader of the saved run."
)
Piece = tuple[int, int, int]
"""Positions of an epoch: (epoch, from, to)."""


@dataclass(frozen=True, slots=True)
class DataState:
    """Position in a data set of `length` samples. Positions of an epoch before `cursor` are committed, but for `debt`.

    The next step's samples are first those of the debt, then those from the cursor on; slot s of `batch` samples has
    the samples s * batch to (s + 1) * batch. `cursor` counts samples, so slots and batch may change between two runs.
    """

    seed: int
    length: int  # number of samples
    digest: str = ""  # digest of the data set
    epoch: int = 0
    cursor: int = 0
    debt: tuple[Piece, ...] = ()  # in rising order
    lanes: int = 0  # members of the quorum of the last commit, if groups train apart (`core.data.deal`)

    @property
    def completed(self) -> int:
        """Number of epochs of which every sample is committed."""
        return min([self.epoch, *(epoch for epoch, _, _ in self.debt)])

    @property
    def owed(self) -> int:
        """Number of samples in debt."""
        return sum(stop - start for _, start, stop in self.debt)

    def committed(self, options: DataOptions) -> int:
        """Return the number of samples committed so far."""
        length = options.used(self.length)
        return self.epoch * length + min(self.cursor, length) - self.owed

    def present(self, slots: Ranges, options: DataOptions) -> Ranges:
        """Return those of the next step's `slots` that hold samples: all, but at a short end of an epoch.

        There the last slot of fewer samples has a step of its own, so that every step is a mean over its samples.
        """
        if options.tail is not Tail.SHORT:
            return slots
        most = max(1, (self.owed + self.length - self.cursor) // options.batch)
        return tuple((start, min(stop, most)) for start, stop in slots if start < most)

    def slot(self, slot: int, options: DataOptions) -> tuple[Piece, ...]:
        """Return the positions of a slot of the next step."""
        return self._pieces(slot * options.batch, (slot + 1) * options.batch, options)

    def commit(self, slots: Ranges, options: DataOptions) -> DataState:
        """Return the state after a commit of these slots of the next step. Slots left out before the last one become debt."""
        slots = self.present(slots, options)
        if not slots:
            return self
        batch, length, owed = options.batch, options.used(self.length), self.owed
        reached = slots[-1][1] * batch  # earlier samples are committed or become debt
        missing = without(((0, slots[-1][1]),), slots)
        debt = [piece for start, stop in missing for piece in self._pieces(start * batch, stop * batch, options)]
        debt += self._pieces(reached, owed, options)
        done = min(self.cursor, length) + max(0, reached - owed)
        if options.tail is Tail.SHORT:
            done = min(done, length)
            if debt and done == length:
                return replace(self, cursor=done, debt=_joined(debt))  # the epoch lasts until its debt is trained
        epochs, cursor = divmod(done, length)
        return replace(self, epoch=self.epoch + epochs, cursor=cursor, debt=_joined(debt))

    def _pieces(self, start: int, stop: int, options: DataOptions) -> tuple[Piece, ...]:
        """Return the positions of the samples `start` to `stop` of the next step."""
        length = options.used(self.length)
        if options.tail is Tail.SHORT:
            stop = min(stop, self.owed + length - self.cursor)
        found: list[Piece] = []
        for epoch, low, high in self.debt:
            size = high - low
            if start < min(stop, size):
                found.append((epoch, low + start, low + min(stop, size)))
            start, stop = max(0, start - size), max(0, stop - size)
        at, end = min(self.cursor, length) + start, min(self.cursor, length) + stop
        while at < end:
            epochs, low = divmod(at, length)
            high = min(length, low + end - at)
            found.append((self.epoch + epochs, low, high))
            at += high - low
        return tuple(found)

    def check_same(self, mine: Position) -> None:
        """Raise `ConfigError` unless this saved position is one in the data set of `mine`, in its order."""
        if not isinstance(mine, DataState):
            raise ConfigError(_OTHER_KIND)
        for what, there, here in (
            ("samples", self.length, mine.length),
            ("the digest", self.digest, mine.digest),
            ("the seed", self.seed, mine.seed),
        ):
            if there != here:
                raise ConfigError(
                    f"the saved position is one in another order of samples: {what} {there!r} there, {here!r} here; resume with "
                    "the data set and seed of the saved run, or begin at step 0 without its checkpoint."
                )

    # --- as text ------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the state as JSON of less than 1 KB, unless dozens of groups were lost in one step."""
        return json.dumps(
            [_VERSION, self.seed, self.length, self.digest, self.epoch, self.cursor, self.debt, self.lanes]
        )

    @staticmethod
    def from_json(text: str) -> DataState:
        """Read the result of `to_json`. Raises `ConfigError` if it is none."""
        try:
            version, seed, length, digest, epoch, cursor, debt, lanes = json.loads(text)
            pieces = tuple((e, low, high) for e, low, high in debt)
            numbers = [length, epoch, cursor, lanes, *(n for piece in pieces for n in piece)]
            whole = all(type(n) is int for n in [seed, *numbers]) and type(digest) is str
            sound = whole and length > 0 and min(numbers) >= 0 and all(low < high <= length for _, low, high in pieces)
            if version != _VERSION or not sound or cursor > length:
                raise ValueError
        except (ValueError, TypeError):
            raise ConfigError(f"this is no position in a data set that this version can read: {text!r:.200}") from None
        return DataState(seed, length, digest, epoch, cursor, pieces, lanes)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Return the pieces in rising order, touching ones as one."""
    epochs = sorted({epoch for epoch, _, _ in pieces})
    by_epoch = {e: ranges((low, high) for epoch, low, high in pieces if epoch == e) for e in epochs}
    return tuple((e, low, high) for e, found in by_epoch.items() for low, high in found)


def samples(pieces: tuple[Piece, ...]) -> list[tuple[int, int]]:
    """Return the (epoch, position) of each sample."""
    return [(epoch, position) for epoch, start, stop in pieces for position in range(start, stop)]


@dataclass(frozen=True, slots=True)
class StreamState:
    """Number of items of each stream that are committed. A slot takes one item of its stream in each step.

    A stream whose slot was left out of a commit stays where it is, so nothing is owed.
    """

    counts: tuple[int, ...]
    lanes: int = 0  # as in `DataState`; streams are not for groups that train apart

    def committed(self, options: DataOptions) -> int:
        """Return the number of items committed so far, of all streams together."""
        return sum(self.counts)

    @property
    def owed(self) -> int:
        return 0

    def present(self, slots: Ranges, options: DataOptions) -> Ranges:
        """Return those of the next step's `slots` that hold data: all."""
        return slots

    def commit(self, slots: Ranges, options: DataOptions) -> StreamState:
        """Return the state after a commit of these slots of the next step."""
        counts = list(self.counts)
        for slot in members(slots):
            counts[slot] += 1
        return StreamState(tuple(counts))

    def check_same(self, mine: Position) -> None:
        """Raise `ConfigError` unless this saved position is one in as many streams as `mine`."""
        if not isinstance(mine, StreamState):
            raise ConfigError(_OTHER_KIND)
        if len(self.counts) != len(mine.counts):
            raise ConfigError(
                f"the saved position is one in {len(self.counts)} streams, and this run has {len(mine.counts)}; their number "
                "can't change."
            )

    def to_json(self) -> str:
        return json.dumps([_STREAMS, self.counts])

    @staticmethod
    def from_json(text: str) -> StreamState | None:
        """Read the result of `to_json`; None if it is not one."""
        try:
            kind, counts = json.loads(text)
            fine = kind == _STREAMS and counts and all(type(n) is int and n >= 0 for n in counts)
        except (ValueError, TypeError):
            return None
        return StreamState(tuple(counts)) if fine else None


Position = DataState | StreamState


def read_position(text: str) -> Position:
    """Read the result of either's ``to_json``. Raises `ConfigError` if it is none."""
    return StreamState.from_json(text) or DataState.from_json(text)
