"""The lighthouse's ports: sessions, the peer's unary service, status, and what must not hurt it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.unit.rpc.support import RawSession, asking, channel, hello, join, known, lighthouse, welcomed
from tests.util import scaled, wait_for
from torchft_x._version import __version__
from torchft_x.core.messages import Note
from torchft_x.core.types import Member, Quorum, State
from torchft_x.errors import AddressError, TokenError
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages
from torchft_x.rpc.coordination import LighthouseClient, LighthouseServer
from torchft_x.rpc.lighthouse.server import log, log_note, log_quorum
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.timing import TIMING


@pytest.fixture
def server() -> Iterator[LighthouseServer]:
    with lighthouse() as made:
        yield made


@pytest.fixture
def session(server: LighthouseServer) -> Iterator[RawSession]:
    made = RawSession(server.address())
    yield made
    made.close()


def test_hello_welcome_join_quorum_pong(server: LighthouseServer, session: RawSession) -> None:
    session.send(hello())
    welcome = session.receive().welcome
    assert (welcome.heartbeat_timeout_s, welcome.ping_s) == (TIMING.silence_alone, TIMING.silence_host / 2)
    session.send(join())
    quorum = messages.unpack(session.receive().quorum)
    assert [x.replica_id for x in quorum.members] == ["a:1"]
    assert quorum.granted_through == 1
    session.send(pb.Up(ping=pb.Ping()))
    assert session.receive().WhichOneof("kind") == "pong"
    assert known(server) == ["a:1"]


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        (b"\xff\xff\xff", "another program"),
        (pb.Up(ping=pb.Ping()), "must be hello"),
        (pb.Up(), "must be hello"),
        (pb.Up(hello=pb.Hello(replica_id="", wire=grpc_options.WIRE)), "name"),
        (
            pb.Up(hello=pb.Hello(replica_id="a\n", library="torchft_x/9.0", wire=grpc_options.WIRE + 1)),
            f"This lighthouse (torchft_x/{__version__}) speaks version {grpc_options.WIRE} of torchft_x's wire and "
            f"a (torchft_x/9.0) version {grpc_options.WIRE + 1}; install the same torchft_x everywhere.",
        ),
    ],
)
def test_a_bad_first_message_gets_a_sentence_and_the_end(
    server: LighthouseServer, session: RawSession, first: Any, sentence: str
) -> None:
    session.send(first)
    assert [sentence in x.refused.sentence for x in session.rest()] == [True]
    assert known(server) == []


def test_garbage_after_hello_ends_that_session_only(server: LighthouseServer, session: RawSession) -> None:
    other = welcomed(server.address(), "b:1")
    session.send(hello())
    session.receive()
    session.send(b"\x0a\xff")
    assert "another program" in session.rest()[0].refused.sentence
    other.send(join("b:1"))
    assert other.receive().WhichOneof("kind") == "quorum"
    other.close()


def test_bytes_that_are_no_http_hurt_nobody(server: LighthouseServer, session: RawSession) -> None:
    address = parse_address(server.address())
    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(999)
    for junk in (b"", os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", http2):
        with socket.create_connection((address.host, address.port), timeout=scaled(5.0)) as s:
            s.sendall(junk)
    session.send(hello())
    assert session.receive().WhichOneof("kind") == "welcome"


def test_a_message_over_the_size_limit_is_refused(server: LighthouseServer) -> None:
    target = parse_address(server.address()).target  # a client without limits of its own
    with grpc.insecure_channel(target) as c, pytest.raises(grpc.RpcError) as e:
        c.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Heartbeat")(
            b"x" * (grpc_options.MAX_CLIENT_MESSAGE + 1), timeout=scaled(5.0)
        )
    assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["Quorum", "Heartbeat"])
@pytest.mark.parametrize("data", [b"\xff\xff", b""])
def test_a_bad_unary_request_gets_a_sentence(server: LighthouseServer, method: str, data: bytes) -> None:
    with channel(server.address()) as c, pytest.raises(grpc.RpcError) as e:
        c.unary_unary(f"/{grpc_options.LIGHTHOUSE}/{method}")(data, timeout=scaled(5.0))
    assert e.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert e.value.details().endswith((".", "?"))


def test_the_newest_session_of_a_member_counts_and_the_join_dies_with_its_session(server: LighthouseServer) -> None:
    first, second = welcomed(server.address()), welcomed(server.address())
    first.send(join())  # of a session that has been replaced: not taken (R3)
    first.close()
    second.send(join(step=4))
    assert messages.unpack(second.receive().quorum).members[0].state.step == 4
    second.close()


def test_a_cancelled_unary_request_is_forgotten() -> None:
    with lighthouse(min_replicas=2) as two, channel(two.address()) as c:
        request = peer_pb.LighthouseQuorumRequest(requester=peer_pb.QuorumMember(replica_id="a"))
        call = c.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Quorum").future(request.SerializeToString())

        wait_for(lambda: asking(two), what="the request to arrive")
        call.cancel()
        wait_for(lambda: not asking(two), what="the request to be forgotten")


def test_two_unary_clients_share_a_quorum() -> None:
    with lighthouse(min_replicas=2) as two:

        def ask(name: str) -> Any:
            return LighthouseClient(two.address(), scaled(5.0)).quorum(name, 10.0, data={"k": 1}, step=2)

        with ThreadPoolExecutor(2) as pool:
            replies = [one.result() for one in [pool.submit(ask, name) for name in ("u1", "u2")]]
        assert [[p.replica_id for p in r.participants] for r in replies] == [["u1", "u2"]] * 2
        assert len({r.quorum_id for r in replies}) == 1
        assert replies[0].participants[1].data == {"k": 1}
        assert replies[0].participants[1].step == 2


@pytest.mark.parametrize(
    ("token", "why"),
    [(None, "it was started with a token, and we have none"), ("wrong", "our token is not the one")],
)
def test_who_has_not_the_token_is_told_why_and_not_which(token: str | None, why: str) -> None:
    """Every method asks for it: tests/unit/rpc/test_strangers.py."""
    with lighthouse(token="secret") as guarded:
        raw = RawSession(guarded.address(), token=token)
        raw.send(hello())
        with pytest.raises(grpc.RpcError) as e:
            raw.receive()
        assert (e.value.code(), why in e.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert "secret" not in e.value.details()
        raw.close()
        with pytest.raises(TokenError, match="TORCHFT_X_TOKEN"):
            LighthouseClient(guarded.address(), scaled(5.0), token=token or "x").heartbeat("a")
        assert known(guarded) == []
        LighthouseClient(guarded.address(), scaled(5.0), token="secret").heartbeat("a")
        assert known(guarded) == ["a"]


def test_a_port_in_use_is_one_sentence_and_a_stopped_server_frees_it_at_once() -> None:
    with lighthouse() as first:
        bind = first.address().removeprefix("http://")
        with pytest.raises(AddressError, match=r"can't listen on 127\.0\.0\.1:\d+: .*in use; free the port"):
            LighthouseServer(bind, 1)
    for _ in range(3):
        with lighthouse(bind=bind) as again:
            assert again.address() == f"http://{bind}"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, log.name)
    return caplog


def test_only_quorums_that_change_something_are_said(lines: pytest.LogCaptureFixture) -> None:
    """In torchft's words: `Detected quorum change, bumping quorum_id to N`, `Quorum!`, `world_size`, `commit_failures`. The
    secret of a store is not for the log."""
    members = (
        Member(
            "a:1",
            "http://worker-1:41093",
            "keyed://0443b49@worker-1:33745",
            State(21, 10),
            world_size=8,
            commit_failures=1,
        ),
        Member("b:1", "http://worker-0:40525", "worker-0:44595", world_size=8),
    )
    for quorum_id, config_id in ((11, 11), (12, 11), (13, 13), (14, 13)):
        log_quorum(Quorum(quorum_id, config_id, quorum_id - 10, members))
    said = (
        "a:1 (step 21, world_size 8, commit_failures 1, address http://worker-1:41093, store_address worker-1:33745), "
        "b:1 (step 0, world_size 8, commit_failures 0, address http://worker-0:40525, store_address worker-0:44595)"
    )
    assert lines.messages == [
        "Detected quorum change, bumping quorum_id to 11",
        f"Quorum! q1 (id 11) at step 21 (quorum 10): 2 members, {said}",
        "Detected quorum change, bumping quorum_id to 13",
        f"Quorum! q3 (id 13) at step 21 (quorum 10): 2 members, {said}",
    ]


def test_notes_have_levels(lines: pytest.LogCaptureFixture) -> None:
    for event in ("member_lost", "leave", "hello", "undecided"):
        log_note(Note(event, event))
    log_note(Note("member_lost", "a:1 has left.", cause="left"))
    said = [(r.levelname, r.message) for r in lines.records]
    assert said == [("WARNING", "member_lost"), ("INFO", "leave"), ("INFO", "undecided"), ("INFO", "a:1 has left.")]
