"""The packages and the arrows that the table WALLS (tests/test_rooms.py) allows, drawn in layers.

Who imports stands above what it imports. Only arrows that don't follow from others are drawn. An arrow that passes a
layer has a place of its own there, so that none runs behind a box; the places are put in order and then moved towards
the middle of what they are joined to (Sugiyama's method, small).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tests.structure import source
from tests.structure.drawing import LINE, Sheet, width_of

BOX = 24.0  # height of a box
GAP = 46.0  # between two layers
APART = 12.0  # between two boxes of a layer
LANE = 11.0  # width of an arrow that passes
MARGIN = 24.0
_ROUNDS = 40  # of putting in order; more change nothing any more

Place = str | tuple[str, str, int]  # a package, or an arrow (from, to) that passes a layer


def draw(walls: Mapping[str, str]) -> str:
    graph = source.reduced({package: set(allowed.split()) for package, allowed in walls.items()})
    layers, links = _layers(graph)
    layers = _in_order(layers, links)
    x = _across(layers, links)
    left = min(x[p] - _wide(p) / 2 for row in layers for p in row) - MARGIN
    width = max(x[p] + _wide(p) / 2 for row in layers for p in row) + MARGIN - left
    top = MARGIN + 2 * LINE
    high = [top + (len(layers) - 1 - level) * (BOX + GAP) for level in range(len(layers))]  # upper edge of each layer
    sheet = Sheet(width, high[0] + BOX + MARGIN, "Packages of torchft_x and who may import whom")
    words = "Who may import whom (WALLS in tests/test_rooms.py). Arrows that follow from others are left out; so are the leaves"
    sheet.text(MARGIN, MARGIN + 4, f"{words} errors, env, net, durations, arguments.", "weak")
    for package in graph:
        for target in sorted(graph[package]):
            sheet.path(_way(package, target, links, {p: x[p] - left for p in x}, high, layers))
    for level, row in enumerate(layers):
        for place in row:
            if isinstance(place, str):
                wide, at = _wide(place), x[place] - left
                sheet.box(at - wide / 2, high[level], wide, BOX, place.split(".")[0])
                sheet.text(at, high[level] + BOX / 2 + 4, place, anchor="middle")
    return sheet.svg()


def _wide(place: Place) -> float:
    return width_of(place) + 14 if isinstance(place, str) else LANE


def _layers(graph: Mapping[str, set[str]]) -> tuple[list[list[Place]], set[tuple[Place, Place]]]:
    """Places by layer, the lowest first, and the links between neighbouring layers (upper, lower)."""
    level: dict[str, int] = {}

    def depth(node: str) -> int:
        if node not in level:
            level[node] = 1 + max((depth(t) for t in graph[node]), default=-1)
        return level[node]

    for node in graph:
        depth(node)
    for node in graph:  # what nothing drawn needs that low comes up to its users, so that arrows are short
        users = [level[n] for n in graph if node in graph[n]]
        if users and not graph[node]:
            level[node] = min(users) - 1
    layers: list[list[Place]] = [[] for _ in range(max(level.values()) + 1)]
    for node in graph:
        layers[level[node]].append(node)
    links: set[tuple[Place, Place]] = set()
    for node in graph:
        for target in sorted(graph[node]):
            way: list[Place] = [node]
            for between in range(level[node] - 1, level[target], -1):
                layers[between].append((node, target, between))
                way.append((node, target, between))
            links |= set(pairwise([*way, target]))
    return layers, links


def _in_order(layers: list[list[Place]], links: set[tuple[Place, Place]]) -> list[list[Place]]:
    """Each layer sorted by the middle of its neighbours, up and down until few arrows cross; the best order seen."""
    above, below = _neighbours(links)
    best, fewest = [list(row) for row in layers], _crossings(layers, below)
    layers = [list(row) for row in layers]
    for turn in range(_ROUNDS):
        rows = range(1, len(layers)) if turn % 2 == 0 else range(len(layers) - 2, -1, -1)
        beside, step = (below, -1) if turn % 2 == 0 else (above, 1)
        for number in rows:
            at = {p: i for i, p in enumerate(layers[number + step])}
            middle = {}
            for i, place in enumerate(layers[number]):
                found = [at[n] for n in beside.get(place, ())]
                middle[place] = (sum(found) / len(found) if found else i * len(at) / len(layers[number]), i)
            layers[number].sort(key=lambda p: middle[p])
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in layers], crossings
    return best


def _neighbours(links: set[tuple[Place, Place]]) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    above: dict[Place, list[Place]] = {}
    below: dict[Place, list[Place]] = {}
    for upper, lower in sorted(links, key=str):
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    return above, below


def _crossings(layers: list[list[Place]], below: dict[Place, list[Place]]) -> int:
    count = 0
    for lower, upper in pairwise(layers):
        at = {p: i for i, p in enumerate(lower)}
        ends = [sorted(at[n] for n in below.get(place, ())) for place in upper]
        for i, left in enumerate(ends):
            for right in ends[i + 1 :]:
                count += sum(a > b for a in left for b in right)
    return count


def _across(layers: list[list[Place]], links: set[tuple[Place, Place]]) -> dict[Place, float]:
    """The middle of each place: near the mean of its neighbours', in order, and apart."""
    above, below = _neighbours(links)
    x: dict[Place, float] = {}
    for row in layers:
        at = 0.0
        for place in row:
            x[place] = at + _wide(place) / 2
            at += _wide(place) + APART
        for place in row:
            x[place] -= at / 2
    for turn in range(_ROUNDS):
        beside = (below, above)[turn % 2]
        for row in layers if turn % 2 == 0 else reversed(layers):
            wanted = [_mean([x[n] for n in beside.get(p, ())], x[p]) for p in row]
            for place, at in zip(row, _spread(wanted, row), strict=True):
                x[place] = at
    return x


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(wanted: list[float], row: list[Place]) -> list[float]:
    """The places nearest to those wanted (least squares) in this order and apart: pool adjacent violators."""
    offset, offsets = 0.0, []
    for i, place in enumerate(row):
        if i:
            gap = APART if isinstance(place, str) or isinstance(row[i - 1], str) else 0.0
            offset += _wide(row[i - 1]) / 2 + gap + _wide(place) / 2
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # sum and number of those that stand side by side
    for want, away in zip(wanted, offsets, strict=True):
        pools.append((want - away, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + count)
    shifts = [total / count for total, count in pools for _ in range(count)]
    return [shift + away for shift, away in zip(shifts, offsets, strict=True)]


def _way(
    package: str,
    target: str,
    links: set[tuple[Place, Place]],
    x: dict[Place, float],
    high: list[float],
    layers: list[list[Place]],
) -> str:
    """The arrow's line: straight down through its places, in curves between the layers."""
    level = {p: i for i, row in enumerate(layers) for p in row}
    passed: list[Place] = [(package, target, i) for i in range(level[package] - 1, level[target], -1)]
    at_x, at_y = _port(package, target, links, x, up=False), high[level[package]] + BOX
    d = [f"M{at_x:.1f},{at_y:.1f}"]
    for place in [*passed, target]:
        to_x = _port(target, package, links, x, up=True) if place == target else x[place]
        to_y = high[level[place]]
        half = (at_y + to_y) / 2
        d.append(f"C{at_x:.1f},{half:.1f} {to_x:.1f},{half:.1f} {to_x:.1f},{to_y:.1f}")
        at_x, at_y = to_x, to_y + BOX
        if place != target:
            d.append(f"V{at_y:.1f}")
    return " ".join(d)


def _port(node: str, other: str, links: set[tuple[Place, Place]], x: dict[Place, float], *, up: bool) -> float:
    """Where on its box an arrow begins or ends: side by side in the order of where they come from."""
    if up:
        ends = [(x[a], str(a), _ends(a, b)) for a, b in links if b == node]
    else:
        ends = [(x[b], str(b), _ends(a, b)[::-1]) for a, b in links if a == node]
    order = [pair[0] for _, _, pair in sorted(ends)]
    room = _wide(node) - 16
    return x[node] - room / 2 + room * (order.index(other) + 1) / (len(order) + 1)


def _ends(upper: Place, lower: Place) -> tuple[str, str]:
    """The packages of a link: who imports, what is imported."""
    importer = upper if isinstance(upper, str) else upper[0]
    imported = lower if isinstance(lower, str) else lower[1]
    return importer, imported
