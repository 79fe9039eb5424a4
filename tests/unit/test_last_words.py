"""How a process tells its platform why it ended."""

from __future__ import annotations

import json
from pathlib import Path

from torchft_x import env, last_words


def test_a_failure_is_told_to_kubernetes_and_to_torchx(tmp_path: Path) -> None:
    words, error = tmp_path / "words", tmp_path / "error.json"
    environ = {env.ERROR_FILE: str(error)}
    last_words.write(0, "all groups finished", str(words), environ)
    assert (words.read_text(), error.exists()) == ("all groups finished", False)
    last_words.write(1, "group 1 gave up", str(words), environ)
    assert words.read_text() == "failed: group 1 gave up"
    assert json.loads(error.read_text())["message"]["message"] == "group 1 gave up"


def test_words_that_can_not_be_written_cost_nothing(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "no/where")):
        last_words.write(1, "x", path, {})
        assert not last_words.was_written(path)
