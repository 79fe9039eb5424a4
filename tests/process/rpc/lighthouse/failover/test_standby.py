"""One of several lighthouses: when it stands by, and what it takes over."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rpc.lighthouse.failover.journals import MEMBERS, RUN, keep, made
from tests.unit.rpc.support import Asking, Supervisor, close, group, members
from tests.util import free_port, scaled, wait_for
from torchft_x.core.journal import JournalEntry
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.errors import AddressError, ConfigError, UnreachableError
from torchft_x.net import Address
from torchft_x.rpc.coordination import LighthouseClient
from torchft_x.rpc.lighthouse.failover.journal import Journal
from torchft_x.rpc.lighthouse.failover.lease import LeaseLostError
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, open_lease
from torchft_x.rpc.lighthouse.failover.lease_journal import newest_epoch, open_epoch_journal
from torchft_x.rpc.lighthouse.failover.standby import HeldLease, hold_lease
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.status_query import lighthouse_overview
from torchft_x.rpc.transport import loop


class Fence:
    """A lease that may be lost."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.lost = ""

    def confirm(self) -> None:
        if self.lost:
            raise LeaseLostError(self.lost)
        self.confirmed += 1

    def lose(self, sentence: str) -> None:
        self.lost = sentence
        raise LeaseLostError(sentence)


def opened(folder: Path, epoch: int, *, boot: str = "boot") -> tuple[Journal, bool, Fence]:
    fence = Fence()
    journal, first = open_epoch_journal(folder, LeaseEntry(epoch, 0, f"{epoch:x}"), fence, boot_id=boot, run=RUN)
    return journal, first, fence


def test_a_holder_begins_with_what_the_one_before_it_has_written_on_another_host(tmp_path: Path) -> None:
    journal, first, fence = opened(tmp_path, 1)
    assert first
    last = keep(journal, made(8))
    assert fence.confirmed == 1
    again, second, _ = opened(tmp_path, 2, boot="of another host")
    assert not second
    assert again.read().entry == replace(last, boot_id="boot")
    later = keep(again, made(9))
    third, _, _ = opened(tmp_path, 3, boot="of another host")
    assert third.read().entry == later


def test_of_another_host_no_time_is_believed(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path, 1)
    value = made(8)
    journal.keep(JournalEntry(value, 4, MEMBERS, leased=7.0), b"")
    journal.keep(JournalEntry(value, 4, MEMBERS, leased=8.0), b"")  # the grant alone
    found = opened(tmp_path, 2, boot="of another host")[0].read().entry
    assert found is None or found.leased is None


def test_what_a_former_holder_still_writes_is_read_by_nobody(tmp_path: Path) -> None:
    former, _, fence = opened(tmp_path, 1)
    keep(former, made(8))
    follower, _, _ = opened(tmp_path, 2)
    taken = keep(follower, made(9))
    fence.lost = "another lighthouse has it"
    with pytest.raises(LeaseLostError):
        keep(former, made(10))
    third, _, _ = opened(tmp_path, 3)
    assert third.read().entry == taken


def test_a_follower_that_died_before_it_wrote_is_passed_over(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path, 1)
    last = keep(journal, made(8))
    assert opened(tmp_path, 5)[0].read().entry == last
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.5"]


def test_the_newest_epoch_is_found_by_its_file(tmp_path: Path) -> None:
    assert newest_epoch(tmp_path / "nowhere") == 0
    assert newest_epoch(tmp_path) == 0
    for epoch in (1, 2, 3):
        opened(tmp_path, epoch)
    (tmp_path / "journal.old").touch()
    assert newest_epoch(tmp_path) == 3


def test_where_nobody_has_written_anything_no_quorum_was_issued(tmp_path: Path) -> None:
    """A holder that died before its first quorum left nothing; one whose file can't be read left something."""
    assert opened(tmp_path, 1)[1]
    journal, first, _ = opened(tmp_path, 2)
    assert first
    keep(journal, made(8))
    with open(journal.path, "r+b") as f:
        f.seek(70)
        f.write(b"damage")
    third, first, _ = opened(tmp_path, 3)
    assert not first
    assert third.read().entry is None
    assert not opened(tmp_path, 4)[1]


def test_a_write_that_fails_ends_the_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _, fence = opened(tmp_path, 1)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(LeaseLostError):
        keep(journal, made(8))
    assert "can't be written (No space left on device)" in fence.lost


def test_a_directory_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"journal\.1 can't be made"):
        opened(tmp_path / "nowhere", 1)


class House:
    """One of several, in this process."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder = folder
        self.owner = owner
        self.bind = Address("127.0.0.1", free_port())
        self.told = threading.Event()  # to stop
        self.waits = threading.Event()  # for the lease
        self.ends: list[int] = []
        self.lost: list[str] = []
        self.held: HeldLease | None = None
        self.shell: LighthouseShell | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hold(self) -> HeldLease | int:
        return hold_lease(
            self.folder, self.owner, address=self.bind.url, bind=self.bind, boot_id="boot", run=RUN, again=False,
            on_lost=self.lost.append, wait=self._wait,
        )  # fmt: skip

    def _wait(self, seconds: float) -> bool:
        self.waits.set()
        return self.told.wait(seconds)

    def _run(self) -> None:
        held = self.hold()
        if isinstance(held, int):
            self.ends.append(held)
            return
        config = LighthouseConfig(min_replicas=1, new_job=False, restarted=not held.first, hello_grace=0.1)
        shell = LighthouseShell(config, journal=held.journal, lease=held.lease)
        loop.call(shell.start(self.bind), scaled(5.0))
        self.held, self.shell = held, shell

    def serve(self) -> None:
        wait_for(lambda: self.shell is not None, 20, f"{self.owner} to serve")

    def stop(self) -> None:
        """Without a word on the lease."""
        self.told.set()
        if self.shell is not None:
            shell, self.shell = self.shell, None
            loop.call(shell.stop(), scaled(5.0))


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[tuple[House, House]]:
    """The first serves, the second stands by."""
    first, second = House(tmp_path, "a"), House(tmp_path, "b")
    first.start()
    first.serve()
    second.start()
    assert second.waits.wait(scaled(20.0))
    yield first, second
    for house in (first, second):
        house.stop()
        if house.held is not None:
            house.held.lease.end()


def test_a_standby_listens_to_nobody_and_logs_who_serves(
    houses: tuple[House, House], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, _ = houses
    third = House(first.folder, "c")
    third.start()
    sentence = f"This lighthouse stands by; the one at {first.bind.url} serves."
    wait_for(lambda: sentence in caplog.text, what="the sentence")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(third.bind)
    third.stop()
    wait_for(lambda: third.ends == [0], what="the third one to end")


def test_a_port_that_is_taken_is_found_before_a_standby_waits(houses: tuple[House, House]) -> None:
    third = House(houses[0].folder, "c")
    with socket.create_server(third.bind), pytest.raises(AddressError, match=rf"can't listen on {third.bind.target}: "):
        third.hold()


def test_a_holder_from_which_the_lease_was_taken_sends_nothing_more(houses: tuple[House, House]) -> None:
    first, _ = houses
    register: LeaseDirectory = open_lease(first.folder / "lease")
    with group("a:1", first.bind.url) as a:
        Asking(a).result()
        with first.held.lease._lock:  # it renews nothing meanwhile, as if it was stopped
            entry = register.read()
            assert register.swap(entry, LeaseEntry(entry.epoch + 1, 0, "c"))
        with pytest.raises(Exception, match=r"No quorum in time|can't be reached|away"):
            Asking(a, timeout=0.5).result()
        wait_for(lambda: first.lost, what="it to notice")


def test_the_end_of_the_job_ends_the_standbys_with_its_code(houses: tuple[House, House]) -> None:
    first, second = houses
    first.held.lease.end(1)
    wait_for(lambda: second.ends == [1], what="the standby to end")


def test_a_standby_that_is_told_to_stop_ends(houses: tuple[House, House]) -> None:
    _, second = houses
    second.told.set()
    wait_for(lambda: second.ends == [0], what="the standby to end")


def test_groups_and_nodes_of_one_group_go_on_at_the_one_that_serves_next(houses: tuple[House, House]) -> None:
    """The nodes begin their next attempt together."""
    first, second = houses
    both = f"{second.bind.url},{first.bind.url}"
    zero, one = Supervisor(both, 0), Supervisor(both, 1)
    try:
        zero.ready()
        one.ready()
        attempt, old, _ = zero.next("begun")
        assert one.next("begun")[:2] == (attempt, old)
        with group("a:1", both) as a, group("b:1", both) as b:
            asks = [Asking(a), Asking(b)]
            quorum = asks[0].result().quorum
            assert [members(x.result()) for x in asks] == [["a:1", "b:1"]] * 2
            first.held.lease.end()  # as when it is told to stop
            first.stop()
            second.serve()
            taken = wait_for(lambda: lighthouse_overview(second.bind)["quorum"], what="the quorum to be taken over")
            assert taken["id"] == quorum.id
            asks = [Asking(a), Asking(b)]
            later = asks[0].result().quorum
            assert later.id > quorum.id
            assert [m.replica_id for m in later.members] == ["a:1", "b:1"]
        zero.ended(-9)
        assert one.next("overs")[:2] == (old, -9)
        one.ended(-15, "told to end")
        for node in (zero, one):
            node.ready(attempt + 1)
        number, token, _ = zero.next("begun", 2)
        assert one.next("begun", 2)[:2] == (number, token)
        assert number > attempt
        assert token != old
    finally:
        close(zero, one)


def test_torchfts_clients_know_one_address_and_train_while_that_one_serves(houses: tuple[House, House]) -> None:
    first, second = houses
    quorum = LighthouseClient(first.bind.url, scaled(5.0)).quorum("peer", scaled(10.0), step=3)
    assert [m.replica_id for m in quorum.participants] == ["peer"]
    first.held.lease.end()
    first.stop()
    second.serve()
    with pytest.raises(UnreachableError):
        LighthouseClient(first.bind.url, 0.2).quorum("peer", 0.2, step=3)
    later = LighthouseClient(second.bind.url, scaled(5.0)).quorum("peer", scaled(10.0), step=4)
    assert [m.replica_id for m in later.participants] == ["peer"]
    assert later.quorum_id >= quorum.quorum_id
