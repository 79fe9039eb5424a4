"""docs/troubleshooting.md quotes sentences of the code and describes every check: neither may go stale."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from torchft_x.launch.doctor import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HOLE = "…"
OTHERS = ("TorchX", "Kubernetes: ")  # rows that quote somebody else say so


def rows(title: str = "") -> list[list[str]]:
    """Cells of the tables, of one section or of all, without their heads."""
    text = PAGE if not title else PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [
        line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| you see", "| check"))
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quotes() -> list[str]:
    first = [cells[0] for cells in rows() if not any(other in cells[0] for other in OTHERS)]
    doctor = {cells[0] for cells in rows("What the doctor says")}
    return [quote for cell in first if cell not in doctor for quote in re.findall(r"`([^`]+)`", cell)]


@cache
def sentences() -> tuple[str, ...]:
    """Every text of the package and the scripts, with a hole where something is filled in."""
    found = []
    for path in [*(ROOT / "torchft_x").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else HOLE for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]", HOLE, node.value))
    return tuple(found)


@pytest.mark.parametrize("quote", quotes())
def test_the_code_says_what_is_quoted(quote: str) -> None:
    # a hole may be any words, and where it ends the quote, the rest of the sentence
    pattern = re.compile(".*".join(re.escape(part) for part in quote.split(HOLE)), re.DOTALL)
    assert any(pattern.search(sentence) for sentence in sentences()), f"nothing in the code says {quote!r}"


def test_every_row_says_what_to_do() -> None:
    for cells in rows():
        assert all(cells), cells
        assert len(cells) in (2, 3), cells


def test_every_check_of_the_doctor_is_described() -> None:
    assert [cells[0] for cells in rows("What the doctor says")] == [check.name for check in CHECKS]
