"""Which of several lighthouses may begin a job: one that has never issued anything, and was told that the job is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rpc.lighthouse.test_journal import RUN, keep, made
from torchft_x.errors import ConfigError
from torchft_x.rpc.lighthouse.journal import Journal
from torchft_x.rpc.lighthouse.shared_journal import open_shared


def opened(path: Path, *, new_job: bool = False, again: bool = False) -> Journal:
    return open_shared(str(path), boot_id="boot", run=RUN, new_job=new_job, again=again)


def blank(path: Path, **how: bool) -> bool:
    ledger = opened(path, **how)
    ledger.close()
    return ledger.blank


def test_a_file_that_is_not_there_may_be_lost(tmp_path: Path) -> None:
    """With its host; and having made it changes nothing."""
    assert not blank(tmp_path / "state")
    assert not blank(tmp_path / "state")
    assert not blank(tmp_path / "other", new_job=True, again=True)
    (tmp_path / "other").unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_somebody_says_that_the_job_is_new(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert blank(path, new_job=True)
    assert blank(path), "it died before it issued anything"
    assert blank(path, new_job=True, again=True)
    assert blank(path, new_job=True)


def test_what_has_been_written_is_no_new_job(tmp_path: Path) -> None:
    path = tmp_path / "state"
    ledger = opened(path, new_job=True)
    keep(ledger, made(7))
    ledger.close()
    assert not blank(path)
    assert not blank(path, new_job=True, again=True), "its keeper starts it again with the same flags"
    with pytest.raises(
        ConfigError, match=f"--new_job, but {path} holds what a lighthouse has written.* Leave --new_job"
    ):
        opened(path, new_job=True)


def test_the_mark_of_another_boot_proves_nothing(tmp_path: Path) -> None:
    """What was written after it may have been lost with the power."""
    path = tmp_path / "state"
    assert blank(path, new_job=True)
    later = open_shared(str(path), boot_id="later", run=RUN, new_job=False, again=False)
    assert not later.blank
    later.close()
    with pytest.raises(ConfigError, match=r"--new_job, but .* or is of another boot of this host"):
        open_shared(str(path), boot_id="later", run=RUN, new_job=True, again=False)


def test_neither_is_what_was_made_void(tmp_path: Path) -> None:
    """It couldn't be written any more: nobody knows what was issued then."""
    path = tmp_path / "state"
    ledger = opened(path, new_job=True)
    ledger.void()
    ledger.close()
    assert not blank(path)


def test_what_can_not_be_used_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        opened(tmp_path)
    ledger = opened(tmp_path / "state")
    with pytest.raises(ConfigError, match="another lighthouse uses it"):
        opened(tmp_path / "state")
    ledger.close()
    with pytest.raises(ConfigError, match=r"--state_file .*No such file"):
        opened(tmp_path / "nowhere" / "state")
