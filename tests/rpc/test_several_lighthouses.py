"""Group servers and supervisors with a list of lighthouses: what is written down, told, and to whom (decision 16)."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.rpc.houses import House, two_houses
from tests.rpc.support import Asking, Watched, group, life, members
from tests.util import scaled, wait_for
from torchft_x.core.types import JoinReason, State
from torchft_x.errors import RefusedError
from torchft_x.net import Address, parse_address, parse_addresses
from torchft_x.rpc.group.last_quorum_file import make_record, open_record, read_word
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.supervisor import client
from torchft_x.rpc.supervisor.client import KEPT_EXITS
from torchft_x.rpc.supervisor.fanout_client import SupervisorFanout
from torchft_x.rpc.transport import loop


@pytest.fixture
def houses() -> Iterator[tuple[House, House]]:
    with two_houses() as made:
        yield made


def listed(*houses: House) -> str:
    return ",".join(h.address for h in houses)


def record(folder: Path, name: str = "received", before: bytes = b"") -> str:
    path = str(folder / name)
    make_record(path, "chain", before)
    return path


def written(path: str) -> pb.LastWord:
    return pb.LastWord.FromString(read_word(path)[0])


def at(quorum: object) -> State:
    """Where a group stands that has committed a step in it."""
    return State(quorum.top.step + 1, quorum.id)  # type: ignore[attr-defined]


# --- group servers ---------------------------------------------------------------------------------------------------


def test_what_a_group_receives_is_written_down_before_it_is_answered(
    houses: tuple[House, House], tmp_path: Path
) -> None:
    path = record(tmp_path)
    with group("0:a", listed(*houses), record=path) as a:
        assert written(path) == pb.LastWord(replica_id="0:a", chain="chain")
        for _ in range(3):
            quorum = Asking(a).result().quorum
            assert written(path).quorum.id == quorum.id


def test_with_one_lighthouse_nothing_is_written(tmp_path: Path) -> None:
    path = record(tmp_path)
    before = Path(path).read_bytes()
    alone = House(None)
    alone.start(new_job=True)
    try:
        with group("0:a", alone.address, record=path) as a:
            Asking(a).result()
    finally:
        alone.stop()
    assert Path(path).read_bytes() == before


def test_a_group_that_can_not_write_leaves_with_a_sentence(houses: tuple[House, House], tmp_path: Path) -> None:
    path, watched = record(tmp_path), Watched()
    with group("0:a", listed(*houses), record=path) as a:
        a.watch(watched.on_over, watched.on_end)
        first = Asking(a).result().quorum
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(RefusedError, match=r"can't be written .* it stops before it follows"):
                Asking(a, state=at(first)).result()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        wait_for(lambda: watched.ends, what="the word to the ranks")
        assert written(path).quorum.id == first.id
        wait_for(lambda: houses[0].here() == [], what="the end of the session")


def test_groups_move_to_the_standby_and_bring_what_they_have(houses: tuple[House, House], tmp_path: Path) -> None:
    first, standby = houses
    with (
        group("0:a", listed(*houses), record=record(tmp_path, "a")) as a,
        group("1:b", listed(*houses), record=record(tmp_path, "b")) as b,
    ):
        asks = [Asking(a), Asking(b)]
        one, _ = (ask.result().quorum for ask in asks)
        assert len(one.members) == 2
        assert standby.here() == []
        first.stop()
        asks = [Asking(x, state=at(one), timeout=scaled(30.0), reason=JoinReason.BOUNDARY) for x in (a, b)]
        two, _ = (ask.result().quorum for ask in asks)
        assert two.id > one.id
        assert (two.id % 16, [q.id for q in two.follows]) == (1, [one.id])
        assert sorted(standby.here()) == ["0:a", "1:b"]
        first.start()
        again = [Asking(x, state=at(two), timeout=scaled(30.0)) for x in (a, b)]
        assert {ask.result().quorum.id % 16 for ask in again} == {1}, "they stay"


def test_who_waits_where_the_others_are_not_moves_on(houses: tuple[House, House], tmp_path: Path) -> None:
    """Its first lighthouse was away for a moment: at the standby it hears that nobody is there, and goes back."""
    first, standby = houses
    first.stop()
    with group("0:a", listed(*houses), record=record(tmp_path)) as a:
        wait_for(lambda: standby.here() == ["0:a"], 20.0, "the group at the standby")
        ask = Asking(a, timeout=scaled(60.0))
        first.start(new_job=True)
        assert members(ask.result()) == ["0:a"]
        assert first.here() == ["0:a"]
        assert standby.here() == []


def test_lighthouses_that_are_others_than_the_list_says(houses: tuple[House, House], tmp_path: Path) -> None:
    first, standby = houses
    alone = House(None)
    alone.start(new_job=True)
    try:
        for given, sentence in [
            (listed(standby, first), r"has --place 1, but is number 0 of those in TORCHFT_LIGHTHOUSE"),
            (listed(alone, standby), r"was started without --place, .* start it with --place 0"),
            (first.address, r"This lighthouse is number 0 of several .* set TORCHFT_LIGHTHOUSE to the whole list"),
        ]:
            with pytest.raises(RefusedError, match=sentence), group("0:a", given):
                pass
        assert alone.status()["members"] == first.status()["members"] == standby.status()["members"] == []
    finally:
        alone.stop()


def test_a_group_that_trains_does_not_end_for_one_that_is_started_wrongly(
    houses: tuple[House, House], tmp_path: Path
) -> None:
    first, standby = houses
    with group("0:a", listed(*houses), record=record(tmp_path)) as a:
        one = Asking(a).result().quorum
        first.stop()
        first.place = None
        first.start()
        ask = Asking(a, state=at(one), timeout=scaled(30.0))
        assert ask.result().quorum.id % 16 == 1
        assert standby.here() == ["0:a"]
        assert first.status()["members"] == []


def test_nobody_writes_down_for_a_group_without_a_supervisor(
    houses: tuple[House, House], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="torchft_x"), group("0:a", listed(*houses)) as a:
        Asking(a).result()
    assert "0:a has no supervisor that learns what it had received" in caplog.text


# --- supervisors -----------------------------------------------------------------------------------------------------


def lines(*houses: House, name: str = "0") -> SupervisorFanout:
    return SupervisorFanout([parse_address(h.address) for h in houses], name, "host", "boot")


def test_the_end_is_told_to_every_lighthouse_with_the_last_word(houses: tuple[House, House], tmp_path: Path) -> None:
    supervisor = lines(*houses)
    path = str(tmp_path / "one")
    try:
        supervisor.make_record("t0", path)
        supervisor.started(0, "t0")
        with group("0:a", listed(*houses), record=path, life=life(0, "t0")) as a:
            quorum = Asking(a).result().quorum
            loop.call(a.shell._uplink.close(0.0), 5.0)  # as if it were killed: no leave
            supervisor.exited(0, "t0", -9, "killed")
            for house in houses:
                wait_for(lambda: house.proofs() == {"0:a": quorum.id}, what="the last word")  # noqa: B023
        houses[1].stop()
        houses[1].start()
        wait_for(lambda: houses[1].proofs() == {"0:a": quorum.id}, 20.0, "the last word, once more")
        second = str(tmp_path / "two")
        supervisor.make_record("t1", second)
        with group("0:b", listed(*houses), record=second, life=life(1, "t1")) as b:
            assert b.shell.settings.record is not None
            before = b.shell.settings.record.before
            assert before is not None
            assert before.id == quorum.id
            assert b.shell.settings.record.chain
    finally:
        supervisor.close(0.0)


def test_no_word_without_the_file(
    houses: tuple[House, House], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And what comes after it belongs to another chain: nobody can stand for a life of which nothing is known."""
    supervisor = lines(*houses)
    try:
        chain = supervisor._chain
        supervisor.make_record("t0", str(tmp_path / "one"))
        (tmp_path / "one").write_bytes(b"")
        supervisor.exited(0, "t0", -9, "killed")
        assert "what the life that has ended had received can't be read" in caplog.text
        assert supervisor._chain != chain
        supervisor.make_record("t1", str(tmp_path / "two"))
        supervisor.exited(1, "t1", 1, "it never came to a lighthouse")
        wait_for(lambda: all(len(line._reports) == 2 for line in supervisor._lines), what="the reports")
        for line in supervisor._lines:
            for data in line._reports.values():
                assert not pb.SupervisorUp.FromString(data).exited.HasField("word")
    finally:
        supervisor.close(0.0)


def test_ends_that_are_needed_are_told_again_however_old(houses: tuple[House, House], tmp_path: Path) -> None:
    """A life that was in the newest quorum that any life of the group has received is still counted."""
    supervisor = lines(*houses)
    try:
        path = str(tmp_path / "first")
        supervisor.make_record("first", path)
        with group("0:a", listed(*houses), record=path, life=life(0, "first")) as a:
            quorum = Asking(a).result().quorum
            loop.call(a.shell._uplink.close(0.0), 5.0)
            supervisor.exited(0, "first", -9, "killed")
        for i in range(KEPT_EXITS + 3):  # none of them gets so far
            supervisor.make_record(f"t{i}", str(tmp_path / str(i)))
            supervisor.exited(1 + i, f"t{i}", 1, "no luck")
        houses[1].stop()
        houses[1].start()
        wait_for(lambda: houses[1].proofs() == {"0:a": quorum.id}, 20.0, "the old end")
        line = supervisor._lines[1]
        wait_for(lambda: len(line._reports) == KEPT_EXITS + 1, what="the others to be forgotten")
    finally:
        supervisor.close(0.0)


def test_of_older_ends_it_is_told_that_they_were(houses: tuple[House, House], tmp_path: Path) -> None:
    """What those had received is not: the newest that the chain has received is told, and first. A lighthouse that has
    forgotten all may hear of an older quorum from others (found by tests/sim, seed 7353582223626)."""
    supervisor, lives = lines(*houses), KEPT_EXITS + 3
    try:
        for i in range(lives):
            path = str(tmp_path / str(i))
            supervisor.make_record(f"t{i}", path)
            with closing(open_record(path, f"0:{i}")) as written_down:
                written_down.keep(pb.Quorum(id=100 + i, members=[pb.Member(replica_id=f"0:{i}")]))
            supervisor.exited(i, f"t{i}", -9, "killed")
        line = supervisor._lines[1]
        # Reports and short ends are counted together: as reports alone pass this number on their way up, too.
        wait_for(lambda: (len(line._reports), len(line._ends)) == (KEPT_EXITS, 3), what="the others to be shortened")
        sent: list[bytes] = []
        line._send = sent.append  # type: ignore[method-assign]
        line._resend()
        words = [pb.SupervisorUp.FromString(data).exited.word for data in sent]
        assert [w.quorum.id for w in words] == [*range(103, 100 + lives), 0, 0, 0]
        assert [w.replica_id for w in words[-3:]] == ["0:0", "0:1", "0:2"]
        bad = str(tmp_path / "bad")
        supervisor.make_record("bad", bad)
        Path(bad).write_bytes(b"")
        supervisor.exited(lives, "bad", -9, "killed")  # now nobody stands for them
        wait_for(lambda: not line._ends, what="the ends of the former chain to be forgotten")
    finally:
        supervisor.close(0.0)


def test_a_lighthouse_that_is_started_wrongly_ends_nobody(
    houses: tuple[House, House], caplog: pytest.LogCaptureFixture
) -> None:
    alone = House(None)
    alone.start(new_job=True)
    orders: list[tuple[int, str]] = []
    supervisor = lines(houses[0], alone)
    try:
        supervisor.on_stop(lambda code, sentence: orders.append((code, sentence)))
        wait_for(lambda: "was started without --place" in caplog.text, what="the sentence")
        wait_for(supervisor.is_up, what="the session")
        assert orders == []
    finally:
        supervisor.close(0.0)
        alone.stop()


def test_the_word_of_the_jobs_own_lighthouse_counts_though_another_is_there(houses: tuple[House, House]) -> None:
    orders: list[tuple[int, str]] = []
    addresses = [parse_addresses(h.address)[0] for h in houses]
    supervisor = SupervisorFanout(addresses, "0", "host", "boot", own=True)
    try:
        supervisor.on_stop(lambda code, sentence: orders.append((code, sentence)))
        wait_for(supervisor.is_up, what="the session")
        supervisor._ordered(0, 1, "the job has failed")
        assert orders == [(1, "the job has failed")]
    finally:
        supervisor.close(0.0)


def test_it_is_told_to_stop_when_nobody_would_have_it_go_on(houses: tuple[House, House]) -> None:
    """A refusal of one that is alone in being there; the other never was."""
    orders: list[tuple[int, str]] = []
    addresses = [parse_addresses(houses[0].address)[0], Address("127.0.0.1", 1)]
    supervisor = SupervisorFanout(addresses, "0\n", "host", "boot")  # no name
    try:
        supervisor.on_stop(lambda code, sentence: orders.append((code, sentence)))
        wait_for(lambda: orders, what="the order")
        assert orders[0][0] == 2
        assert "unprintable" in orders[0][1]
        assert supervisor.away() > 0
    finally:
        supervisor.close(0.0)


def test_one_that_refuses_is_asked_again_while_another_is_there_or_may_come(
    houses: tuple[House, House], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby that was started with another job's token, by the time it is started again as it should be."""
    monkeypatch.setattr(client, "FIRST_AGAIN", 0.1)
    monkeypatch.setattr(client, "LAST_AGAIN", 0.2)
    monkeypatch.setattr(client, "COMING", scaled(20.0))
    for house in houses:
        house.stop()
    houses[1].start(token="of-another-job")
    orders: list[tuple[int, str]] = []
    supervisor = lines(*houses)
    refused, line = supervisor._lines[1], supervisor._lines[0]
    try:
        supervisor.on_stop(lambda code, sentence: orders.append((code, sentence)))
        supervisor.started(0, "t0")
        wait_for(lambda: refused._refusals > 2, what="the refusals")  # the other one had no time to come
        houses[0].start()
        wait_for(line.is_up, 20.0, "the other one")
        houses[0].stop()  # and away for a while: it was there
        again = refused._refusals + 2
        wait_for(lambda: refused._refusals >= again, what="more refusals")
        assert caplog.text.count("it asks again, though one says") == 1
        assert refused.away() > 0.2  # a refusal is no touch
        houses[1].stop()
        houses[1].start()
        wait_for(lambda: refused.is_up() and not refused._refusals, 20.0, "the session")
        supervisor.exited(0, "t0", 1, "killed")  # it hears what it needs
        wait_for(lambda: refused._unanswered <= 0 and len(refused._reports) == 2, what="the reports")
        assert orders == []
    finally:
        supervisor.close(0.0)


def test_it_is_told_to_stop_once_when_all_refuse_it(
    houses: tuple[House, House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_AGAIN", 0.1)
    for house in houses:
        house.stop()
        house.start(token="of-another-job")
    orders: list[tuple[int, str]] = []
    supervisor = lines(*houses)
    try:
        supervisor.on_stop(lambda code, sentence: orders.append((code, sentence)))
        wait_for(lambda: orders, what="the order")
        assert orders[0][0] == 2
        assert "token" in orders[0][1]
        more = supervisor._lines[0]._refusals + 2
        wait_for(lambda: supervisor._lines[0]._refusals >= more, what="more refusals")
        assert len(orders) == 1
    finally:
        supervisor.close(0.0)
