"""The least of everybody's numbers: right for any number of members, released when one is lost, deaf to strangers."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest
import torch.distributed as dist

from tests.torch.comm.members import together
from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x.comm.votes.all_min import AllMin
from torchft_x.errors import CollectiveError, DeadlineError, UnreachableError

HOST = "127.0.0.1"
WIDTH = 3
LIMIT = scaled(20)
Meeting = Callable[[], str]
Crowd = Callable[[int], list[AllMin]]


def names(size: int) -> list[str]:
    return [f"g{rank}:x" for rank in range(size)]


def connect(tallies: list[AllMin], address: str, config_id: int = 1) -> None:
    def body(rank: int) -> Callable[[], None]:
        def run() -> None:
            tallies[rank].offer(address, rank, names(len(tallies)), config_id, LIMIT)
            tallies[rank].connect(LIMIT)

        return run

    together([body(rank) for rank in range(len(tallies))])


def vote(tallies: list[AllMin], rows: list[list[int]], timeout: float = LIMIT) -> list[list[int]]:
    return together([lambda t=t, row=row: t.minimum(row, timeout) for t, row in zip(tallies, rows, strict=True)])


def failure(tally: AllMin) -> str:
    with pytest.raises(CollectiveError) as e:
        tally.minimum([0] * WIDTH, LIMIT)
    return str(e.value)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made: list[AllMin] = []

    def make(size: int) -> list[AllMin]:
        new = [AllMin(HOST, WIDTH) for _ in range(size)]
        made.extend(new)
        return new

    yield make
    for tally in made:
        tally.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9])
def test_everybody_gets_the_least_of_all(size: int, crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(size)
    connect(tallies, meeting())
    for lowest in range(size):  # whoever holds the least, all hear of it
        rows = [[rank, -rank, 0 if rank == lowest else (1 << 63) - 1] for rank in range(size)]
        assert vote(tallies, rows) == [[0, 1 - size, 0]] * size
    assert vote(tallies, [[-(1 << 63)] * 3] * size) == [[-(1 << 63)] * 3] * size


def test_nobody_has_the_answer_before_all_have_spoken(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(5)
    connect(tallies, meeting())
    answers = [background(lambda rank=rank: tallies[rank].minimum([rank] * WIDTH, LIMIT)) for rank in range(4)]
    assert not futures.wait(answers, 0.2, futures.FIRST_COMPLETED).done
    assert tallies[4].minimum([-1] * WIDTH, LIMIT) == [-1] * WIDTH
    assert [answer.result(LIMIT) for answer in answers] == [[-1] * WIDTH] * 4


def test_members_change(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(3)
    connect(tallies, meeting(), 1)
    assert vote(tallies, [[r] * 3 for r in range(3)]) == [[0] * 3] * 3
    connect(tallies[1:], meeting(), 2)
    assert vote(tallies[1:], [[5] * 3, [6] * 3]) == [[5] * 3] * 2
    connect(tallies, meeting(), 3)
    assert vote(tallies, [[r] * 3 for r in range(3)]) == [[0] * 3] * 3


def test_there_is_time_while_the_votes_are_on_their_way(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(3)
    connect(tallies, meeting(), 1)
    heard, done = threading.Event(), []

    def body(rank: int) -> None:
        def meanwhile() -> None:
            done.append(rank)
            if rank == 0:  # our row has left: rank 1, which hears it first, may go on
                assert heard.wait(LIMIT)

        assert tallies[rank].minimum([rank] * WIDTH, LIMIT, meanwhile) == [0] * WIDTH

    def second() -> None:
        assert tallies[1]._mesh is not None
        connection = tallies[1]._mesh._back[0]
        wait_for(lambda: bool(select.select([connection], [], [], 0)[0]), what="the row of rank 0")
        heard.set()
        body(1)

    together([lambda: body(0), second, lambda: body(2)])
    assert sorted(done) == [0, 1, 2]
    alone = crowd(1)
    connect(alone, meeting(), 2)
    assert alone[0].minimum([4] * WIDTH, LIMIT, lambda: done.append(9)) == [4] * WIDTH
    assert done[-1] == 9


def test_an_abort_releases_who_waits(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(2)
    connect(tallies, meeting(), 7)
    said = background(lambda: failure(tallies[0]))
    tallies[0].abort(6)  # another set of members: nothing happens
    with pytest.raises(TimeoutError):
        said.result(0.1)
    tallies[0].abort(7)
    assert said.result(LIMIT) == "the vote of rank 0 of 2 was released: the group was aborted."
    with pytest.raises(CollectiveError, match="released"):
        tallies[0].minimum([0] * WIDTH, LIMIT)


def test_who_is_aborted_before_it_spoke_leaves_nobody_waiting(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(7)
    connect(tallies, meeting(), 7)
    tallies[3].abort(7)
    said = together([lambda tally=tally: failure(tally) for tally in tallies])  # type: ignore[misc]
    assert said[3] == "the vote of rank 3 of 7 was released: the group was aborted."
    assert said[4].startswith("the vote of rank 4 of 7 broke at rank 3 (g3:x): ")
    connect(tallies, meeting(), 8)  # a new set of members mends it
    assert vote(tallies, [[r] * 3 for r in range(7)]) == [[0] * 3] * 7


def test_an_abort_releases_who_connects(crowd: Crowd, meeting: Meeting) -> None:
    (tally,) = crowd(1)
    tally.offer(meeting(), 0, names(2), 4, LIMIT)
    timer = threading.Timer(0.05, tally.abort, (4,))
    timer.start()
    with pytest.raises(CollectiveError, match=r"connecting rank 0 of 2 .* was released: the group was aborted"):
        tally.connect(LIMIT)
    timer.join()


def test_who_does_not_come_is_named(crowd: Crowd, meeting: Meeting) -> None:
    tallies, address = crowd(3), meeting()
    tallies[0].offer(address, 0, names(3), 4, LIMIT)
    with pytest.raises(DeadlineError, match=r"failed: rank 1 \(g1:x\) did not come in time"):
        tallies[0].connect(0.1)
    tallies[1].offer(address, 1, names(3), 4, LIMIT)
    tallies[2].offer(address, 2, names(3), 4, LIMIT)
    with pytest.raises(CollectiveError, match=r"rank 0 \(g0:x\) can't be reached at 127.0.0.1:\d+: .*refused") as e:
        tallies[2].connect(LIMIT)  # rank 0 has given up
    assert e.value.suspects == ("g0:x",)


def test_who_says_nothing_in_time_is_named(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(2)
    connect(tallies, meeting())
    with pytest.raises(DeadlineError, match=r"nothing came from rank 1 \(g1:x\)"):
        tallies[0].minimum([5] * WIDTH, 0.2)


def test_without_a_store_or_members(crowd: Crowd) -> None:
    (tally,) = crowd(1)
    with socket.socket() as free:
        free.bind((HOST, 0))
        address = f"{HOST}:{free.getsockname()[1]}/p"
        with pytest.raises(UnreachableError, match="Nothing listens at the store's address"):
            tally.offer(address, 0, names(2), 1, LIMIT)
    with pytest.raises(CollectiveError, match="no members yet"):
        AllMin(HOST, WIDTH).minimum([0] * WIDTH, LIMIT)


def test_strangers_are_not_members(crowd: Crowd, meeting: Meeting, store: dist.TCPStore) -> None:
    """Whoever doesn't know the secret that the listener has left in the store is nobody, whatever it sends."""
    tallies, address = crowd(2), meeting()
    tallies[0].offer(address, 0, names(2), 1, LIMIT)
    notice = json.loads(store.get(f"{address.partition('/')[2]}/vote/0"))
    assert notice["host"] == HOST
    calls = [socket.create_connection((HOST, notice["port"])) for _ in range(80)]  # more than are listened to at once
    hello = struct.Struct("!8s16sI")
    calls[0].sendall(hello.pack(b"tfx vote", b"\0" * 16, 1))  # a wrong secret
    calls[1].sendall(hello.pack(b"tfx vote", bytes.fromhex(notice["secret"]), 0))  # no rank that is awaited
    calls[2].sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
    calls[3].sendall(b"tfx")  # and no more
    calls[4].close()

    def other() -> None:
        tallies[1].offer(address, 1, names(2), 1, LIMIT)
        tallies[1].connect(LIMIT)

    together([other, lambda: tallies[0].connect(LIMIT)])
    assert vote(tallies, [[3] * 3, [4] * 3]) == [[3] * 3] * 2
    for call in calls:
        call.close()


def test_a_notice_that_is_none(crowd: Crowd, meeting: Meeting, store: dist.TCPStore) -> None:
    for number, bad in enumerate(("{", "[]", json.dumps({"host": HOST, "port": "x", "secret": ""}), "1" * 1000)):
        (tally,), address = crowd(1), meeting()
        store.set(f"{address.partition('/')[2]}/vote/1", bad)
        tally.offer(address, 0, names(2), number, LIMIT)
        with pytest.raises(CollectiveError, match=r"what rank 1 \(g1:x\) says of itself is no address"):
            tally.connect(LIMIT)


def test_members_out_of_step_are_found_out(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(2)
    connect(tallies, meeting())
    tallies[0]._mesh._turn = 1  # type: ignore[union-attr]
    said = together([lambda tally=tally: failure(tally) for tally in tallies])  # type: ignore[misc]
    assert any("it is in its turn" in sentence for sentence in said)


def test_nothing_is_left(crowd: Crowd, meeting: Meeting) -> None:
    tallies = crowd(3)
    connect(tallies, meeting(), 0)
    vote(tallies, [[0] * 3] * 3)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 5):
        connect(tallies, meeting(), number)
        vote(tallies, [[0] * 3] * 3)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, what="the sockets of former members are closed")
    for tally in tallies:
        tally.shutdown()
        tally.shutdown()
    assert len(os.listdir("/proc/self/fd")) < before
