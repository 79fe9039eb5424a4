"""Arithmetic of `Ranges`."""

from __future__ import annotations

from collections.abc import Iterable

from torchft_x.core.types import Ranges


def ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of these ranges, which may overlap and come in any order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return tuple(found)


def size(of: Ranges) -> int:
    """Return the number of integers."""
    return sum(stop - start for start, stop in of)


def without(of: Ranges, taken: Ranges) -> Ranges:
    """Return the integers of `of` that are not in `taken`."""
    found = []
    for start, stop in of:
        for low, high in taken:
            if high <= start or low >= stop:
                continue
            found.append((start, low))
            start = max(start, high)
        found.append((start, stop))
    return ranges(found)


def overlap(one: Ranges, other: Ranges) -> bool:
    """Return whether an integer is in both."""
    return size(without(one, other)) < size(one)


def cut(of: Ranges, counts: Iterable[int]) -> list[Ranges]:
    """Return consecutive parts of `of` that have `counts` integers each."""
    rest, parts = list(of), []
    for count in counts:
        part = []
        while count > 0 and rest:
            start, stop = rest[0]
            taken = min(count, stop - start)
            part.append((start, start + taken))
            rest[:1] = [(start + taken, stop)] if start + taken < stop else []
            count -= taken
        parts.append(tuple(part))
    return parts


def members(of: Ranges) -> list[int]:
    """Return the integers in rising order."""
    return [i for start, stop in of for i in range(start, stop)]
