"""Hooks of mkdocs (mkdocs.yml): pages outside of docs, and reference pages that are made from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Place all pages at their paths in the repository, so that one link works on the site and in a clone."""
    ours = [*OUTSIDE, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*")) if path.is_file())]
    added = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in ours]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *added])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the reference pages. Drop comments, which would end a table for mkdocs."""
    if page.file.src_uri == "docs/api.md":
        markdown += "\n".join(public_names())
    if page.file.src_uri == "docs/environment.md":
        markdown += "\n".join(environment())
    return re.sub(r"^<!--.*-->$", "", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Drop the marks of code blocks in docstrings, which Markdown does not need."""
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def public_names() -> Iterator[str]:
    """Yield a reference to each name of `torchft_x.__all__`, and for the functions that scripts import elsewhere."""
    stub = ast.parse((ROOT / "torchft_x/__init__.pyi").read_text(encoding="utf-8")).body
    names = sorted(alias.name for node in stub if isinstance(node, ast.ImportFrom) for alias in node.names)
    names = [f"torchft_x.{name}" for name in names if name != "__version__"]
    yield from (f"\n::: {name}\n" for name in (*names, *MORE))


MORE = (
    "torchft_x.observe.export.on_step",
    "torchft_x.observe.export.track",
    "torchft_x.observe.export.otel.OtelExporter",
    "torchft_x.observe.read_events",
    "torchft_x.observe.subscribe",
    "torchft_x.train.fault_tolerance.parse_args",
    "torchft_x.comm.ProcessGroup",
    "torchft_x.errors",
)
"""Names outside of `torchft_x.__all__` that the pages tell scripts to import."""


def environment() -> Iterator[str]:
    """Yield the rows of a table of torchft_x/env.py's variables, explained by the comments behind or above them.

    A comment after an empty line is a heading. Raise `ValueError` for a variable without a comment.
    """
    comments: list[str] = []
    after_empty = heading = False
    yield from ("", "| variable | meaning |", "|---|---|")
    for line in (ROOT / "torchft_x/env.py").read_text(encoding="utf-8").splitlines():
        if line.startswith(("def ", "class ")):
            return
        if line.startswith("# "):
            heading = after_empty if not comments else heading
            comments.append(line.removeprefix("# "))
        elif found := re.match(r'[A-Z]\w* = "(\w+)"(?:  # (.*))?$', line):
            if comments and heading:
                yield from ("", f"## {' '.join(comments)}", "", "| variable | meaning |", "|---|---|")
                comments = []
            text = found[2] or " ".join(comments)
            if not text:
                raise ValueError(f"torchft_x/env.py does not explain {found[1]}")
            if not text.startswith("tests only"):
                yield f"| `{found[1]}` | {text} |"
            comments = []
        after_empty = not line
