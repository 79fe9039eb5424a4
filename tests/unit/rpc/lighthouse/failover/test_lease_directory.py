"""A register that is the name of a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from torchft_x.core.lighthouse.lease import LeaseEntry, LeaseRule
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, entry_name, open_lease, parse_name


@pytest.fixture
def register(tmp_path: Path) -> LeaseDirectory:
    return open_lease(tmp_path / "lease")


def test_many_who_begin_at_the_same_time_make_one_and_one_of_them_takes_it(tmp_path: Path) -> None:
    started, won = threading.Barrier(8), []

    def contend(owner: str) -> None:
        started.wait()
        register = open_lease(tmp_path / "lease")
        if register.swap(LeaseEntry(0), LeaseEntry(1, 0, owner)):
            won.append(owner)

    threads = [threading.Thread(target=contend, args=(f"{i:x}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert open_lease(tmp_path / "lease").read() == LeaseEntry(1, 0, won[0])
    assert os.listdir(tmp_path) == ["lease"]


def test_a_swap_of_what_is_not_there_changes_nothing(register: LeaseDirectory) -> None:
    assert not register.swap(LeaseEntry(7, 1, "a"), LeaseEntry(8, 0, "b"))
    assert register.read() == LeaseEntry(0)


def test_a_swap_whose_answer_was_lost_is_told_when_it_is_tried_again(register: LeaseDirectory) -> None:
    old, new = LeaseEntry(0), LeaseEntry(1, 0, "a")
    assert register.swap(old, new)
    assert register.swap(old, new)
    assert not register.swap(old, LeaseEntry(1, 0, "b"))


def test_a_directory_that_is_away_is_an_error_and_no_answer(tmp_path: Path) -> None:
    register = open_lease(tmp_path / "lease")
    os.rename(tmp_path / "lease", tmp_path / "gone")
    with pytest.raises(OSError):
        register.read()
    assert not register.swap(LeaseEntry(0), LeaseEntry(1, 0, "a"))


@pytest.mark.parametrize("values", [(0,), (7, 41, "0f3a"), (7, 42, ""), (7, 43, "0f3a", 0), (7, 43, "", 1)])
def test_a_name_says_all(values: tuple[Any, ...]) -> None:
    assert parse_name(entry_name(LeaseEntry(*values))) == LeaseEntry(*values)


@pytest.mark.parametrize("name", ["", ".nfs0001", "7-41", "7-41-Other", "7-41-a-over", "x-1-a", "7-41-a.tmp"])
def test_other_files_are_none(name: str) -> None:
    assert parse_name(name) is None


def test_of_two_names_in_one_listing_the_newer_counts(register: LeaseDirectory) -> None:
    for entry in (LeaseEntry(2, 9, "a"), LeaseEntry(3, 0, "b")):
        (register.folder / entry_name(entry)).touch()
    assert register.read() == LeaseEntry(3, 0, "b")


def test_an_entry_that_somebody_has_deleted_is_made_again_and_watched_before_it_is_followed(
    register: LeaseDirectory,
) -> None:
    assert not register.mend(3), "an entry is there"
    os.unlink(register.folder / entry_name(LeaseEntry(0)))
    assert register.read() is None
    assert not register.mend(0), "nothing shows that this is the directory in which somebody has served"
    assert register.mend(3)
    made = register.read()
    assert (made.epoch, made.verdict) == (3, None)
    assert LeaseRule("a").poll(made, 0.0) is None
    assert not register.mend(3)


@pytest.mark.parametrize("make", [False, True])
def test_where_there_are_journals_no_lease_begins_anew(tmp_path: Path, make: bool) -> None:
    made = open_lease(tmp_path / "lease", make=make, epoch=3).read()
    assert (made.epoch, bool(made.owner)) == (3, True)


def test_where_nothing_is_any_more_a_next_attempt_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_lease(tmp_path / "lease", make=False)
    assert os.listdir(tmp_path) == []


def test_a_listing_that_shows_nothing_makes_nothing(register: LeaseDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LeaseDirectory, "read", lambda _: None)
        assert not register.mend(3)
    assert register.read() == LeaseEntry(0)
    assert os.listdir(register.folder.parent) == ["lease"]


def test_a_note_goes_with_the_entry_and_makes_none(register: LeaseDirectory) -> None:
    one, two = LeaseEntry(1, 0, "a"), LeaseEntry(1, 1, "a")
    register.swap(LeaseEntry(0), one)
    register.leave_note(one, "http://a:1")
    register.swap(one, two)
    assert (register.note(two), register.note(one)) == ("http://a:1", "")
    register.leave_note(one, "http://b:1")
    assert os.listdir(register.folder) == [entry_name(two)]
