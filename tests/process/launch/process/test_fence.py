from __future__ import annotations

from pathlib import Path

from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.process.fence import watch_fence


def test_one_that_was_started_again_elsewhere_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "newest"
    file.write_text("7_1-r0\n")
    watch_fence({}, told.append)
    watch_fence({env.FENCE_FILE: str(file), env.FENCE: "7_1-r0"}, told.append)
    assert told == []
    file.write_text("9_1-r0\n")
    wait_for(lambda: told, 10, "the older one to be told")
    assert told == ["it was started again elsewhere, and this is the one before"]
