"""Commands on the pages work as they are typed, where the page says that they are typed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXTS = {
    path: path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs/examples").glob("*.py")]
}


def test_a_component_outside_of_the_clone_is_launched_with_its_scheduler() -> None:
    """TorchX's default is `local_docker`; only the clone's `.torchxconfig`, which it seeks in the current directory, names
    another."""
    lines = [
        (path.name, line)
        for path, text in TEXTS.items()
        for line in re.findall(r"^    (?:\$ )?(torchx run .*)", text, flags=re.MULTILINE)
    ]
    assert len(lines) > 20
    assert [at for at in lines if not re.search(r" -s | --scheduler |torchx run +(#|--|\./components)", at[1])] == []


def test_no_page_installs_a_release_that_is_not_there() -> None:
    assert [p.name for p, text in TEXTS.items() if re.search(r"pip install ['\"]?torchft[_-]x", text)] == []


def test_the_recipes_are_in_their_file() -> None:
    """docs/write_a_script.md: what a row of "Recipes" quotes stands in docs/examples/recipes.py."""
    section = TEXTS[ROOT / "docs/write_a_script.md"].partition("## Recipes\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ")[1] for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 9
    for row in rows:
        for code in re.findall(r"`([^`]+)`", row):
            assert code.rstrip("()") in TEXTS[ROOT / "docs/examples/recipes.py"], code
