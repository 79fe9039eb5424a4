"""The agreement inside a group: one message up, the decision and the next step's beginning down."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from tests.torch.train.fakes import background
from tests.util import scaled
from torchft_x.comm.votes.ranks import Decision, Hub, RankVote, Spoke
from torchft_x.errors import CollectiveError, DeadlineError, RefusedError, UnreachableError

HOST = "127.0.0.1"
YES = Decision(True)


class Ranks:
    """A hub and its spokes."""

    def __init__(self, number: int) -> None:
        self.hub = Hub(HOST, number)
        self.spokes = [Spoke(self.hub.contact, rank, scaled(5)) for rank in range(1, number)]

    def votes(self, step: int, quorum: int = 7, but: int | None = None) -> list[Future[Decision]]:
        def vote(spoke: Spoke, rank: int) -> Future[Decision]:
            said = RankVote(quorum, step, True, digest=rank, contributors=2)
            return background(lambda: spoke.vote(said, scaled(10)))

        return [vote(spoke, rank) for rank, spoke in enumerate(self.spokes, 1) if rank != but]

    def close(self) -> None:
        self.hub.close()
        for spoke in self.spokes:
            spoke.close()


@pytest.fixture
def make() -> Iterator[Callable[[int], Ranks]]:
    with ExitStack() as stack:

        def made(number: int) -> Ranks:
            ranks = Ranks(number)
            stack.callback(ranks.close)
            return ranks

        yield made


@pytest.mark.parametrize("number", [2, 3, 9])
def test_all_vote_and_hear_the_same(make: Callable[[int], Ranks], number: int) -> None:
    ranks = make(number)
    for step in range(5):
        answers = ranks.votes(step)
        heard = ranks.hub.gather(7, step, scaled(10))
        assert {rank: v.digest for rank, v in heard.items()} == {rank: rank for rank in range(1, number)}
        assert all(v.ok and not v.broken and v.contributors == 2 for v in heard.values())
        said = YES if step % 2 else Decision(False, f"no to {step}", undecided=True)
        ranks.hub.decide(7, step, said)
        assert [a.result(scaled(10)) for a in answers] == [said] * (number - 1)
        assert ranks.hub.owes_start == said.commit
        assert all(s.expects_start == said.commit for s in ranks.spokes)
        if said.commit:
            assert ranks.spokes[0].start(0.001) is None  # not said yet
            ranks.hub.start(7, step + 1, runs_on=step == 1, connected=step != 1)
            assert {s.start(scaled(5)) for s in ranks.spokes} == {(step == 1, 7, step + 1)}
            assert {s.connected for s in ranks.spokes} == {step != 1}
            assert not any(s.expects_start for s in ranks.spokes)


def test_who_has_not_voted_is_named(make: Callable[[int], Ranks]) -> None:
    ranks = make(4)
    answers = ranks.votes(0, but=2)
    with pytest.raises(DeadlineError, match=r"group rank 2 of 4 has not voted"):
        ranks.hub.gather(7, 0, scaled(0.3))
    ranks.hub.decide(7, 0, Decision(False, "too late"))
    assert [a.result(scaled(5)).reason for a in answers] == ["too late"] * 2


def test_a_rank_that_never_connects_is_named() -> None:
    hub = Hub(HOST, 3)
    spoke = Spoke(hub.contact, 2, scaled(5))
    try:
        with pytest.raises(DeadlineError, match="group rank 1 of 3"):
            hub.gather(7, 0, scaled(0.2))
    finally:
        hub.close()
        spoke.close()


def test_a_dead_rank_is_named_and_a_dead_rank_0_noticed(make: Callable[[int], Ranks]) -> None:
    ranks = make(3)
    answers = ranks.votes(0)
    ranks.hub.gather(7, 0, scaled(10))
    ranks.hub.decide(7, 0, YES)
    assert all(a.result(scaled(5)).commit for a in answers)
    ranks.spokes[1].close()
    (waits,) = ranks.votes(1, but=2)
    with pytest.raises(CollectiveError, match="the connection to group rank 2 broke"):
        ranks.hub.gather(7, 1, scaled(10))
    ranks.hub.close()
    with pytest.raises(CollectiveError, match="the connection to group rank 0 broke"):
        waits.result(scaled(10))


def test_votes_of_a_step_that_was_given_up_are_passed_over(make: Callable[[int], Ranks]) -> None:
    ranks = make(2)
    (spoke,) = ranks.spokes
    spoke.leave(7, 3)
    assert ranks.hub.gather(7, 3, scaled(5))[1].left  # rank 0 votes on it: it hears that the other won't
    ranks.hub.decide(7, 3, Decision(False, "given up"))
    spoke.leave(8, 3)
    (answer,) = ranks.votes(3, quorum=9)
    assert ranks.hub.gather(9, 3, scaled(5))[1].ok
    ranks.hub.decide(9, 3, YES)
    assert answer.result(scaled(5)) == YES  # not the one before


def test_ranks_of_different_steps_break_off(make: Callable[[int], Ranks]) -> None:
    ranks = make(2)
    ranks.votes(5)
    with pytest.raises(CollectiveError, match=r"rank 1 broke: it votes on step 5 of quorum 7, this group on step 4"):
        ranks.hub.gather(7, 4, scaled(5))


def test_a_hub_that_ends_while_ranks_are_awaited_says_why() -> None:
    """The accept fails with EINVAL, which reached whoever waited for the vote."""
    hub = Hub(HOST, 2)
    waits = background(lambda: hub.gather(7, 0, scaled(30)))
    hub.end("a newer attempt runs")
    with pytest.raises(CollectiveError, match="was released: a newer attempt runs"):
        waits.result(scaled(5))
    hub.close()


def test_end_releases_both_sides(make: Callable[[int], Ranks]) -> None:
    ranks = make(3)
    (answer,) = ranks.votes(0, but=2)
    waits = background(lambda: ranks.hub.gather(7, 0, scaled(30)))
    ranks.hub.end("a newer attempt runs")
    with pytest.raises(CollectiveError, match="was released: a newer attempt runs"):
        waits.result(scaled(5))
    with pytest.raises(CollectiveError, match="group rank 0 broke"):
        answer.result(scaled(5))
    ranks.spokes[1].end("a newer attempt runs")
    with pytest.raises(CollectiveError, match="was released: a newer attempt runs"):
        ranks.spokes[1].vote(RankVote(7, 0, True), scaled(5))


def test_nobody_gets_in_without_the_secret(make: Callable[[int], Ranks]) -> None:
    hub = Hub(HOST, 2)
    contact = json.loads(hub.contact)
    wrong = json.dumps({**contact, "secret": "00" * 16}).encode()
    stranger = Spoke(wrong, 1, scaled(5))
    silent = socket.create_connection((contact["host"], contact["port"]))
    member = Spoke(hub.contact, 1, scaled(5))
    vote = background(lambda: member.vote(RankVote(7, 0, True, digest=5), scaled(10)))
    try:
        assert hub.gather(7, 0, scaled(10))[1].digest == 5
        hub.decide(7, 0, YES)
        assert vote.result(scaled(5)) == YES
        with pytest.raises(CollectiveError):
            stranger.vote(RankVote(7, 0, True), scaled(5))
        with pytest.raises(OSError):  # the listener is gone once all are there
            socket.create_connection((contact["host"], contact["port"]), 1.0)
    finally:
        for end in (hub, stranger, silent, member):
            end.close()


@pytest.mark.parametrize("contact", [b"", b"[]", b'{"host": "h"}', b'{"host": "h", "port": 1, "secret": "x"}', b"\xff"])
def test_an_address_that_is_none_is_refused(contact: bytes) -> None:
    with pytest.raises(RefusedError, match="rank 0 says about its address"):
        Spoke(contact, 1, 1.0)


def test_rank_0_that_can_t_be_reached() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    contact = json.dumps({"host": HOST, "port": port, "secret": "00" * 16}).encode()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=f"group rank 1 can't reach rank 0 at {HOST}:{port}"):
        Spoke(contact, 1, scaled(5))
    assert time.monotonic() - began < scaled(5)
