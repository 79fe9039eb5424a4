"""Tables of docs/torchft.md that are generated from code.

``pytest --rewrite tests/unit/compat/test_page.py`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torchft_x.compat import differences
from torchft_x.compat.differences import table
from torchft_x.compat.names import LACKING

PAGE = Path(__file__).resolve().parents[3] / "docs" / "torchft.md"


def _lacking() -> str:
    return table(["torchft", "instead"], [[f"`{name}`", why] for name, why in LACKING.items()])


TABLES: Mapping[str, Callable[[], str]] = {
    "differences": differences.differences,
    "gone": differences.gone,
    "lacking": _lacking,
}


def put(text: str, name: str, words: str, command: str = "") -> str:
    """Return the page with `words` between the marks of this name."""
    begin, end = f"<!-- {name}{command} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    assert found, f"no mark {begin}"
    assert found_end, f"no mark {end}"
    return f"{before}{begin}\n\n{words}\n\n{end}{after}"
