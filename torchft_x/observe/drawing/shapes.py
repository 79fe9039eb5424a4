"""SVG sheets inside a page. Their shapes use the classes of the page's style, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from torchft_x.observe.console import harmless


def safe(text: object, most: int = 200) -> str:
    """Escape a value for an HTML text or a quoted attribute, of at most `most` characters before the escaping."""
    return escape(harmless(text, most))


class Sheet:
    """Collection of SVG shapes. Coordinates are pixels from the upper left."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self._shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        inside = f"<title>{safe(title, 400)}</title>" if title else ""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" class="{kind}"'
            + (f">{inside}</rect>" if inside else "/>")
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._shapes.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        self._shapes.append(f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}" class="{kind}"/>')

    def mark(self, x: float, y: float, kind: str, title: str) -> None:
        """Add a small triangle that points down to (x, y)."""
        self._shapes.append(
            f'<path d="M{x:.1f} {y:.1f}l-4 -7h8z" class="{kind}"><title>{safe(title, 400)}</title></path>'
        )

    def text(self, x: float, y: float, words: object, kind: str = "small", anchor: str = "start") -> None:
        self._shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{safe(words)}</text>')

    def svg(self) -> str:
        head = f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label="{safe(self.label)}">'
        return head + "".join(self._shapes) + "</svg>"


def ticks(low: float, high: float, about: int = 8) -> list[float]:
    """Return about `about` round numbers between the two."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def moments(length: float, about: int = 9) -> list[float]:
    """Return about `about` round times from 0 to `length` seconds."""
    if length < 60:
        return ticks(0.0, length, about)
    steps = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
    step = next((s for s in steps if s * about >= length), 86400 * math.ceil(length / 86400 / about))
    return [float(k * step) for k in range(int(length / step) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten between the two."""
    return [10.0**k for k in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def seconds(value: float | None) -> str:
    """Format seconds for people: 45 ms, 1.63 s, 2 min 3 s."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{1000 * value:.0f} ms" if value >= 0.00095 or value <= 0 else f"{1000 * value:.2g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock(t: float) -> str:
    """Format seconds since a run's start as minutes and seconds: 1:44.5."""
    minutes, rest = divmod(max(0.0, round(t, 1)), 60.0)
    return f"{minutes:.0f}:{rest:04.1f}" if minutes < 60 else f"{minutes // 60:.0f}:{minutes % 60:02.0f}:{rest:04.1f}"


def amount(value: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return every nth point, at most about `most`, and the last one."""
    every = max(1, math.ceil(len(points) / most))
    return [*points[::every], *(points[-1:] if (len(points) - 1) % every else [])]
