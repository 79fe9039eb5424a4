"""What whoever starts a lighthouse again must know of its end, where exit codes can't say it."""

from __future__ import annotations

from pathlib import Path

from torchft_x import env, last_words


def test_words_that_can_not_be_written_cost_nothing(tmp_path: Path) -> None:
    nowhere = {env.LAST_WORDS: str(tmp_path / "no/where")}
    last_words.tell(1, "x", nowhere)
    assert not last_words.part_status(nowhere)
    last_words.tell(1, "x", {})
    assert not last_words.part_status({})
