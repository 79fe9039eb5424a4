"""Supervisors and members that say what can't be: each is refused with a sentence, and nobody else notices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.rpc.lighthouse.page.served import Served, served
from tests.unit.rpc.support import RawSession, asking, join, lighthouse, reporting, welcomed
from tests.util import wait_for
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits


@pytest.fixture
def house() -> Iterator[Served]:
    """The lighthouse of a job of groups 0 and 1."""
    with served(token=None, bind="off", groups=("0", "1"), join_timeout=60.0, gone_grace=0.2) as made:
        yield made


def states(house: Served) -> dict[str, str]:
    return {name: group["state"] for name, group in house.status()["groups"].items()}


def says(address: str, **fields: Any) -> str:
    """What a supervisor is refused with; '' if it is welcome."""
    raw = RawSession(address, f"/{grpc_options.SUPERVISE}/Supervise")
    try:
        raw.send(pb.SupervisorUp(hello=pb.SupervisorHello(host="h", wire=grpc_options.WIRE, **fields)))
        return pb.SupervisorDown.FromString(next(raw._call)).refused.sentence
    finally:
        raw.close()


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        ({"node": 5}, "node is 5, it must lie between 0 and 0"),  # S7: IndexError, and the honest one's group was lost
        ({"node": 1, "nodes": 4096}, "was told that the group has 4096 nodes, its first supervisor 1; give all"),
    ],
)
def test_a_supervisor_of_a_node_that_is_not_hurts_itself_only(house: Served, lie: Any, sentence: str) -> None:
    honest = reporting(house.address, "0")
    try:
        wait_for(lambda: house.status()["groups"]["0"]["host"], what="the honest supervisor")
        before = states(house)
        assert sentence in says(house.address, group="0", **lie)
        deadline = time.monotonic() + 0.5  # longer than the grace for who is gone
        while time.monotonic() < deadline:
            assert states(house) == before
    finally:
        honest.close(0.1)


def test_nobody_waits_for_a_group_that_the_job_has_not(house: Served) -> None:
    raw = RawSession(house.address, f"/{grpc_options.SUPERVISE}/Supervise")
    raw.send(pb.SupervisorUp(hello=pb.SupervisorHello(group="xyz", host="h", wire=grpc_options.WIRE)))
    next(raw._call)
    member = welcomed(house.address, "0:1")
    member.send(join("0:1"))
    assert member.receive().WhichOneof("kind") == "quorum"  # and not after the join timeout of a minute
    member.close()
    raw.close()


def quorum(members: int, **fields: Any) -> pb.Quorum:
    return pb.Quorum(id=1, members=[pb.Member(replica_id=str(i), **fields) for i in range(members)])


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (quorum(4096, carried=range(200)), "819200 handles, carried quorums and held slots, at most 262144"),
        (quorum(4096, handles=[""] * 100), "409600 handles, carried quorums and held slots"),
        (quorum(4097), "4097 members"),
    ],
)
def test_a_long_quorum_is_refused_before_it_is_read(
    told: pb.Quorum, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(messages.MEMBER, "decode", lambda _: made.append(1))
    with pytest.raises(RefusedError, match=sentence):
        messages.HELLO.decode(pb.Hello(replica_id="a:1", quorum=told), session=1)
    assert made == []
    messages.HELLO.decode(pb.Hello(replica_id="a:1", quorum=quorum(3)), session=1)
    assert made == [1, 1, 1]


def test_a_long_list_is_refused_before_it_is_read() -> None:
    class Counted(list[str]):
        def __iter__(self) -> Any:
            raise AssertionError("it is read")

    with pytest.raises(RefusedError, match="suspects has 5000 entries, at most 4096"):
        limits.check_texts(Counted(["x"] * 5000), "suspects", limits.MAX_MEMBERS)


def test_an_id_from_no_clock_is_refused_and_the_next_quorum_is_taken_by_all() -> None:
    """S6: its id was above all that members take."""
    with lighthouse() as server:
        honest, liar = welcomed(server.address()), RawSession(server.address())
        liar.send(pb.Up(hello=pb.Hello(replica_id="z:1", wire=grpc_options.WIRE, state=pb.State(committed_in=2**62))))
        assert "an id from a time that no clock shows" in liar.rest()[0].refused.sentence
        honest.send(join())
        assert messages.unpack(honest.receive().quorum).id < 2**52
        assert not asking(server)
        honest.close()
        liar.close()


def test_what_others_say_is_one_line_without_escapes() -> None:
    """S11: it reaches logs and terminals."""
    evil = "\x1b[2Jno\nyes\t\u202e."
    paused = messages.up_to_event(1, pb.Up(pause=pb.Pause(seconds=1, reason=evil)))
    assert paused.reason == "?[2Jno yes ?."  # type: ignore[union-attr]
    revoked = messages.REVOKED.decode(pb.Revoked(quorum_id=1, lost=["a\x1b"], reason=evil))
    assert (revoked.lost, revoked.reason) == (("a?",), "?[2Jno yes ?.")
    for field in ("address", "library"):
        with pytest.raises(RefusedError, match=f"{field} holds unprintable characters"):
            messages.MEMBER.decode(pb.Member(replica_id="a:1", **{field: evil}))
