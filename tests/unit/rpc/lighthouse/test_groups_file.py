"""A real file, replaced and broken while it is looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.rpc.lighthouse.services.groups_file import GroupsFile

THREE = GroupsChanged(("0", "1", "2"))


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def test_each_content_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(render(THREE))
    file = GroupsFile(path)
    assert file.changed() == THREE
    assert file.changed() is None
    replace(path, render(GroupsChanged(("0",))))
    assert file.changed() == GroupsChanged(("0",))


def test_a_file_that_cant_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "groups.json"
    file = GroupsFile(path)
    assert (file.changed(), file.changed()) == (None, None)
    assert len(caplog.records) == 1
    replace(path, "{torn")
    assert (file.changed(), file.changed()) == (None, None)
    assert len(caplog.records) == 2
    replace(path, render(THREE))
    assert file.changed() == THREE
