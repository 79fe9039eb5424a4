"""Tables of docs/torchft.md that are generated from code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "torchft.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def put(text: str, name: str, words: str, command: str = "") -> str:
    """Return the page with `words` between the marks of this name."""
    begin, end = f"<!-- {name}{command} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    assert found, f"no mark {begin}"
    assert found_end, f"no mark {end}"
    return f"{before}{begin}\n\n{words}\n\n{end}{after}"
