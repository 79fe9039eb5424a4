"""observe/run_dirs: which run directories there are."""

from __future__ import annotations

import os
from pathlib import Path

from torchft_x.observe.run_dirs import newest_run, runs_below, written


def test_runs_in_order_of_their_newest_event(tmp_path: Path) -> None:
    for name, newest in (("b", 1000), ("a", 2000), ("c", 1500)):
        log = tmp_path / name / "events" / "x.jsonl"
        log.parent.mkdir(parents=True)
        log.touch()
        for path in (log, log.parent, tmp_path / name):
            os.utime(path, (900, 900))
        os.utime(log, (newest, newest))
    (tmp_path / "no-run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [path.name for path in runs_below(tmp_path)] == ["b", "c", "a"]
    assert newest_run(tmp_path) == tmp_path / "a"
    assert written(tmp_path / "c") == 1500
    assert newest_run(tmp_path / "runs") is None
    assert written(tmp_path / "runs") == 0.0
