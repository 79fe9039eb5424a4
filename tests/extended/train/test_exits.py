"""Processes that have imported torch are asked for their stacks until they end."""

from __future__ import annotations

from pathlib import Path

from tests.process.train.introspection.test_setup import folder, stress  # noqa: F401


def test_no_exit_is_changed_by_questions(folder: Path) -> None:
    assert stress(folder, "exits-with-torch", 6) == {0: 2, 7: 2, 1: 2}
