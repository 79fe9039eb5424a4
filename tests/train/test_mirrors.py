"""A group that comes back copies the state from several carriers, and one of them dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.train.jobs import Group, lighthouse
from tests.util import wait_for


def train_on(groups: list[Group], steps: int = 5) -> None:
    there = max(g.last_step() for g in groups)
    wait_for(lambda: all(g.last_step() > there + steps for g in groups), 60, "all groups to train together")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_heal_outlives_its_source(tmp_path: Path) -> None:
    with lighthouse() as address:
        groups = [Group(i, address, tmp_path, "tests.train.mirrors_worker") for i in range(3)]
        source, other, newcomer = groups
        try:
            train_on(groups)
            newcomer.kill()
            train_on([source, other])
            before = len(newcomer.lines("copied")), len(newcomer.lines("failed"))
            source.path.with_name(f"{source.path.name}.die").touch()
            newcomer.start()
            wait_for(lambda: source.process.poll() is not None, 60, "the source to die")
            assert source.process.returncode == -signal.SIGKILL
            train_on([other, newcomer])
            copied = newcomer.lines("copied")[before[0] :]
            assert [mirrors for mirrors, _, _ in copied] == [1], "one heal, with one mirror"
            assert len(newcomer.lines("failed")) == before[1]

            source.path.with_name(f"{source.path.name}.die").unlink()
            source.start()
            train_on(groups)
            last = max(g.last_step() for g in groups) + 10
            (tmp_path / "new").write_text(str(last))
            (tmp_path / "new").rename(tmp_path / "stop")
            wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
            assert [g.process.returncode for g in groups] == [0] * 3
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    by_step: dict[int, set[str]] = {}
    for g in groups:
        for step, digests in g.digests().items():
            by_step.setdefault(step, set()).update(digests)
    assert sorted(by_step) == list(range(1, last + 1))
    assert [s for s, digests in by_step.items() if len(digests) > 1] == []
