"""A sheet of SVG with a fixed-width font, so that the width of a text is known, readable on light and dark pages."""

from __future__ import annotations

from html import escape

SIZE = 12  # of the text, pixels
CHAR = 7.3  # width of a character of that size, with some to spare
LINE = 16  # from one line of text to the next

_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_HUES = {"core": 210, "rpc": 265, "comm": 150, "transfer": 175, "train": 30, "launch": 340, "observe": 55}


def width_of(words: str) -> float:
    return len(words) * CHAR


class Sheet:
    """Collects shapes. Coordinates are pixels from the upper left. `css` names a class of `_style`."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._size = f"{width:.0f}", f"{height:.0f}"
        self._title = title
        self._shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, css: str, radius: float = 4) -> None:
        size = f"width='{width:.1f}' height='{height:.1f}' rx='{radius:g}'"
        self._shapes.append(f"<rect x='{x:.1f}' y='{y:.1f}' {size} class='{css}'/>")

    def text(self, x: float, y: float, words: str, css: str = "", anchor: str = "start", turn: float = 0) -> None:
        """`y`: of the line on which the letters stand. `turn`: degrees, clockwise. `anchor`: start, middle, end."""
        more = f" class='{css}'" if css else ""
        more += f" text-anchor='{anchor}'" if anchor != "start" else ""
        more += f" transform='rotate({turn:g} {x:.1f} {y:.1f})'" if turn else ""
        self._shapes.append(f"<text x='{x:.1f}' y='{y:.1f}'{more}>{escape(words)}</text>")

    def path(self, d: str, *, arrow: bool = True, css: str = "edge") -> None:
        end = " marker-end='url(#arrow)'" if arrow else ""
        self._shapes.append(f"<path d='{d}' class='{css}'{end}/>")

    def dot(self, x: float, y: float, css: str = "dot", radius: float = 4) -> None:
        self._shapes.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' class='{css}'/>")

    def svg(self) -> str:
        width, height = self._size
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>"
        )
        marker = (
            "<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
            "<path d='M0,0.5 L8,4 L0,7.5 z' class='tip'/></marker></defs>"
        )
        ground = f"<rect width='{width}' height='{height}' class='ground'/>"
        title = f"<title>{escape(self._title)}</title>"
        return "\n".join([head, title, _style(), marker, ground, *self._shapes, "</svg>", ""])


def _style() -> str:
    """Ground and text change together, so the picture can be read whatever is around it."""
    light = [
        f"text {{ font: {SIZE}px {_FONT}; fill: #1f2328 }}",
        ".strong { font-weight: bold }",
        ".weak { fill: #59636e }",
        ".ground { fill: #ffffff }",
        ".edge { fill: none; stroke: #848d97; stroke-width: 1.2 }",
        ".rule { fill: none; stroke: #d1d9e0; stroke-width: 1 }",
        ".tip, .dot { fill: #59636e }",
        ".band { fill: #f6f8fa }",
        ".state { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.5 }",
    ]
    light += [f".{room} {{ fill: hsl({hue}, 75%, 92%); stroke: hsl({hue}, 55%, 42%) }}" for room, hue in _HUES.items()]
    dark = [
        "text { fill: #e6edf3 }",
        ".weak { fill: #9198a1 }",
        ".ground { fill: #0d1117 }",
        ".edge { stroke: #7d8590 }",
        ".rule { stroke: #30363d }",
        ".tip, .dot { fill: #b1bac4 }",
        ".band { fill: #161b22 }",
        ".state { fill: #0c2d6b; stroke: #4493f8 }",
    ]
    dark += [f".{room} {{ fill: hsl({hue}, 40%, 20%); stroke: hsl({hue}, 55%, 55%) }}" for room, hue in _HUES.items()]
    return "\n".join(
        ["<style>", *light, "@media (prefers-color-scheme: dark) {", *(f"  {rule}" for rule in dark), "}", "</style>"]
    )
