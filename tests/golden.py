"""Golden files: expected results of tests. ``pytest --rewrite`` writes them; read the diff then."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Golden:
    """Comparison of results with golden files. `rewrite`: write the files instead."""

    rewrite: bool

    def check(self, path: Path, text: str) -> None:
        """Fail with the difference unless the file has this text."""
        if self.rewrite:
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = (one.splitlines(keepends=True) for one in (expected, text))
            difference = "".join(difflib.unified_diff(*lines, path.name, "now"))
            pytest.fail(f"{path} differs; if that is meant: pytest --rewrite\n{difference}", pytrace=False)

    def check_all(self, folder: Path, texts: Mapping[str, str]) -> None:
        """Check all files of the folder, by name. Fail if the folder has another file."""
        extra = {path for path in folder.iterdir() if path.name not in texts}
        if self.rewrite:
            for path in extra:
                path.unlink()
        assert self.rewrite or not extra
        for name, text in texts.items():
            self.check(folder / name, text)
