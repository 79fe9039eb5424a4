"""Runs a training script and writes the samples that each committed step of this group has trained on.

    python record_samples.py FILE SCRIPT ARGUMENTS ...

A line is a JSON list: step, and the [epoch, position] of each sample. The script is unmodified.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchft_x import ElasticLoader, Manager
from torchft_x.train.elastic.sampler import Micro


def record(file: Path) -> None:
    """Write the samples of each committed step of this process from now on."""
    trained: list[tuple[int, int]] = []
    steps, should_commit = ElasticLoader.step, Manager.should_commit

    def step(self: ElasticLoader) -> Iterator[Micro]:
        trained.clear()
        for micro in steps(self):
            trained.extend((s.epoch, s.position) for s in micro.samples if micro.counts)
            yield micro

    def commit(self: Manager, *args: Any, **kwargs: Any) -> bool:
        committed = should_commit(self, *args, **kwargs)
        if committed:
            with file.open("a") as f:
                f.write(json.dumps([self.current_step(), trained]) + "\n")
        return committed

    ElasticLoader.step, Manager.should_commit = step, commit  # type: ignore[method-assign]


if __name__ == "__main__":
    name, sys.argv = sys.argv[1], sys.argv[2:]
    record(Path(name))
    runpy.run_path(sys.argv[0], run_name="__main__")
