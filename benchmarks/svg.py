"""A small writer of SVG, with the shapes that the benchmarks' pictures need."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


class Sheet:
    """A picture that collects shapes until `write` makes the file. Coordinates are pixels from the upper left."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._shapes: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1, dash: str = "") -> None:
        style = f" stroke-dasharray='{dash}'" if dash else ""
        self._shapes.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{color}' stroke-width='{width}'{style}/>"
        )

    def dot(self, x: float, y: float, color: str, radius: float = 4) -> None:
        self._shapes.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{color}'/>")

    def area(self, points: Iterable[tuple[float, float]], color: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f"<polygon points='{path}' fill='{color}'/>")

    def text(
        self, x: float, y: float, words: str, size: float = 12, color: str = "#222", anchor: str = "start"
    ) -> None:
        """Add a line of text. `anchor`: start, middle or end."""
        self._shapes.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{color}' text-anchor='{anchor}' {FONT}>{escape(words)}</text>"
        )

    def write(self, path: Path) -> None:
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{self.width:.0f}' height='{self.height:.0f}' "
            f"viewBox='0 0 {self.width:.0f} {self.height:.0f}'>"
        )
        ground = f"<rect width='{self.width:.0f}' height='{self.height:.0f}' fill='white'/>"
        path.write_text("\n".join([head, ground, *self._shapes, "</svg>", ""]), encoding="utf-8")
