"""What a lighthouse writes down: it is there after SIGKILL, and nothing that can't be relied on is believed."""

from __future__ import annotations

import logging
import os
import stat
import struct
from pathlib import Path

import pytest

from tests.unit.rpc.lighthouse.failover.journals import MEMBERS, RUN, keep, made, opened, read
from torchft_x.core.journal import Absent, Departure, JournalEntry
from torchft_x.core.types import AttemptId, State
from torchft_x.rpc.codec import messages
from torchft_x.rpc.lighthouse.failover.journal import JournalContents, fingerprint, open_local_journal
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options


def kept(folder: Path, *entries: JournalEntry) -> JournalEntry:
    """Write these, one after the other, and close the file; the last one."""
    journal = opened(folder)
    journal.read()
    for entry in entries or (JournalEntry(made(7), 4, MEMBERS),):
        journal.keep(entry, messages.pack(entry.quorum))
    journal.close()
    return entry


def test_what_was_kept_last_is_read(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert journal.read() == JournalContents()
    keep(journal, made(7))
    last = keep(journal, made(8, created=9.0, granted_through=4), granted=4)
    journal.close()
    assert read(tmp_path).entry == last
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


def test_a_grant_that_grows_is_kept_alone_with_the_end_of_leases_and_the_newest_step(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    value = made(8)
    data = messages.pack(value)
    journal.keep(JournalEntry(value, 4, MEMBERS, leased=100.5, reached=3), data)
    before = (tmp_path / "state").read_bytes()
    journal.keep(last := JournalEntry(value, 4000, MEMBERS, leased=102.25, reached=6), data)
    after = (tmp_path / "state").read_bytes()
    assert sum(x != y for x, y in zip(before, after, strict=True)) <= 3 * 8
    journal.close()
    assert read(tmp_path).entry == last


def test_who_is_in_the_job_and_who_has_left_it_is_kept(tmp_path: Path) -> None:
    value, left = made(8), (Departure("a:1", AttemptId(1, 2.0, "token"), State(9, 8), "http://a:1", ended=True),)
    last = JournalEntry(value, 4, MEMBERS, leased=100.5, left=left, job=("a", "b"))
    kept(tmp_path, JournalEntry(value, 4, MEMBERS), last)
    assert read(tmp_path).entry == last


def test_open_quorums_and_who_is_absent_are_kept_without_a_new_quorum(tmp_path: Path) -> None:
    value = made(8)
    absent = (Absent("a:1", 33.25, "its process ended with exit code -9"), Absent("b:1"))
    for open_ in ((made(6), made(7)), (made(7),), ()):
        for gone in ((), absent[:1], absent):
            last = kept(tmp_path, JournalEntry(value, 4, MEMBERS), JournalEntry(value, 4, MEMBERS, open_, gone, 50.0))
            assert read(tmp_path).entry == last


def test_times_of_another_clock_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = made(8)
    kept(tmp_path, JournalEntry(value, 4, MEMBERS, absent=(Absent("a:1", 7.0, "it has left"),), leased=8.0))
    monkeypatch.setattr("torchft_x.rpc.lighthouse.failover.journal._clock", lambda: "time:[1]")
    assert read(tmp_path).entry == JournalEntry(value, 4, MEMBERS, absent=(Absent("a:1", None, "it has left"),))


def test_the_file_does_not_grow_with_the_number_of_quorums(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for i in range(1, 60):
        last = keep(journal, made(i, members=1 + i % 7))
    journal.close()
    assert read(tmp_path).entry == last
    assert (tmp_path / "state").stat().st_size < 64 + 4 * len(messages.pack(made(1, members=7))) + 4000


def test_the_older_one_counts_until_the_newer_is_complete(tmp_path: Path) -> None:
    """As if SIGKILL had come between the two writes."""
    journal = opened(tmp_path)
    older = keep(journal, made(7))
    header = (tmp_path / "state").read_bytes()[:64]
    keep(journal, made(8))
    journal.close()
    with (tmp_path / "state").open("r+b") as f:
        f.write(header)
    assert read(tmp_path).entry == older


def test_supervisors_that_are_done_are_kept_beside_it(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    done = pb.Done(group="0", host="h", nodes=1, code=0, sentence="finished", attempt_token="x", together=["x", "y"])
    journal.keep_done(done)
    journal.close()
    again = opened(tmp_path)
    assert again.read() == JournalContents(None, (done,))
    keep(again, made(9))
    again.close()
    assert read(tmp_path).done == (done,)


def test_a_group_that_was_given_up_and_added_again_is_not_over_for_the_next_lighthouse(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for group in ("1", "2"):
        journal.keep_done(pb.Done(group=group, host="h", nodes=1, code=1, sentence="the host is bad"))
    journal.drop_done({"1"})
    journal.close()
    again = opened(tmp_path)
    assert [d.group for d in again.read().done] == ["2"]
    again.keep_done(pb.Done(group="1", host="h", nodes=1))
    again.close()
    assert {(d.group, d.code) for d in read(tmp_path).done} == {("2", 1), ("1", 0)}


def _damaged(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_damaged, "it is damaged"),
        (lambda d: d[:-1], "it is damaged"),
        (lambda d: b"#!/bin/sh\n" + d, "it is not a lighthouse's"),
        (lambda d: d[:20], "it is not a lighthouse's"),
        (lambda d: d[:40] + struct.pack("<Q", 1 << 40) + d[48:], "at most"),
        (lambda d: d[:32] + struct.pack("<Q", 1 << 60) + d[40:], "it says that it holds"),
    ],
)
def test_what_is_not_whole_is_not_believed(
    tmp_path: Path, spoil: object, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path)
    path = tmp_path / "state"
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path) == JournalContents()
    assert sentence in caplog.text
    caplog.clear()
    assert read(tmp_path) == JournalContents()
    assert not caplog.text  # it was made void


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ({"boot": "another"}, "before this host was started again"),
        ({"boot": ""}, "before this host was started again"),
        ({"run": fingerprint("other", "job")}, "another job"),
        ({"run": fingerprint("secret", "other")}, "another job"),
    ],
)
def test_what_is_of_another_boot_or_job_is_ignored(
    tmp_path: Path, who: dict[str, object], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, **who) == JournalContents()
    assert sentence in caplog.text
    assert read(tmp_path) == JournalContents()  # nor is it believed later


def test_another_version_of_the_wire_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path)
    monkeypatch.setattr(grpc_options, "WIRE", grpc_options.WIRE + 1)
    assert read(tmp_path) == JournalContents()


@pytest.mark.parametrize("path", ["/nowhere/state", "/dev/null", "/"])
def test_a_place_that_can_not_be_written_is_a_sentence_only(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_local_journal(path, boot_id="boot", run=RUN) is None
    assert "--state_file" in caplog.text


def test_a_full_disk_is_a_sentence_and_what_is_there_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path)
    keep(journal, made(7))
    write = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if at >= 64:
            raise OSError(28, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        keep(journal, made(8))
        keep(journal, made(9))
    assert caplog.text.count("No space left on device") == 1
    journal.close()
    assert read(tmp_path) == JournalContents()
    monkeypatch.undo()
    again = opened(tmp_path)
    last = keep(again, made(10))
    again.close()
    assert read(tmp_path).entry == last


def test_a_write_that_takes_only_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:50], at))
    journal = opened(tmp_path)
    last = keep(journal, made(7))
    journal.close()
    monkeypatch.undo()
    assert read(tmp_path).entry == last


def test_the_token_is_not_in_the_file(tmp_path: Path) -> None:
    kept(tmp_path)
    assert b"secret" not in (tmp_path / "state").read_bytes()
