"""Numbers with their units for people."""

from __future__ import annotations


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
