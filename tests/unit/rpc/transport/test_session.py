"""The connection that comes back: against a server the test controls, also one that says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc.aio
import pytest

from tests.util import free_port, scaled, wait_for
from torchft_x.errors import RefusedError, TokenError, TorchftXError
from torchft_x.net import Address
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.session import MISSED_PINGS, Keepalive, ReconnectingStream, StreamCallbacks, rhythm
from torchft_x.rpc.transport.token import metadata

METHOD = "/test.Echo/Talk"


class Server:
    """Answers hello with ``welcome`` and then does what `mode` says."""

    def __init__(self) -> None:
        self.mode = "echo"
        self.service = "test.Echo"
        self.heard: list[bytes] = []
        self.sessions = 0
        self._server: Any = None
        self.port = 0

    async def start(self, token: str | None = None) -> None:
        self._server = grpc_options.make_server(token, 16)
        self._server.add_generic_rpc_handlers((grpc_options.stream_service(self.service, "Talk", self._talk),))
        self.port = grpc_options.listen(self._server, Address("127.0.0.1", self.port), "The test")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _talk(self, _it: Any, context: Any) -> None:
        self.sessions += 1
        while (data := await context.read()) is not grpc.aio.EOF:
            self.heard.append(data)
            if data == b"hello" and self.mode == "mute":
                continue
            if data == b"hello":
                await context.write(self.mode.encode() if self.mode == "refuse" else b"welcome")
            elif self.mode == "echo":
                await context.write(b"re:" + data)
            elif self.mode == "end":
                return
            while self.mode == "chatty":
                await context.write(b"word")
                await asyncio.sleep(0)


class Owner:
    """An uplink's owner that writes down what happens."""

    def __init__(
        self,
        port: int,
        token: str | None = None,
        *,
        silence: float = 60.0,
        others: tuple[int, ...] = (),
        moved: Server | None = None,
        eager: bool = False,
    ) -> None:
        self.log: list[str] = []
        self.errors: list[TorchftXError] = []
        self._silence = silence  # after which it is given up; a busy machine may be silent for a while
        callbacks = StreamCallbacks(
            hello=lambda: b"hello",
            welcome=self._welcome,
            up=lambda: self.log.append("up"),
            message=lambda data: self.log.append(data.decode()),
            down=lambda reason: self.log.append(f"down: {reason}"),
            refused=self.errors.append,
            eager=lambda: eager,
        )
        first, *more = (Address("127.0.0.1", p) for p in (port, *others))
        seek = None if moved is None else lambda: [Address("127.0.0.1", moved.port)] if moved.port else []
        self.uplink = ReconnectingStream(first, METHOD, metadata(token), b"ping", callbacks, others=more, seek=seek)
        loop.post(self.uplink.start)

    def _welcome(self, data: bytes) -> Keepalive:
        if data != b"welcome":
            raise RefusedError("Not you.")
        return Keepalive(0.02, self._silence)

    def send(self, data: bytes) -> None:
        loop.post(self.uplink.send, data)

    def close(self) -> None:
        loop.call(self.uplink.close(1.0), scaled(5.0))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    loop.call(made.start(), scaled(5.0))
    yield made
    loop.call(made.stop(), scaled(5.0))


def test_messages_in_order_both_ways_and_a_clean_end(server: Server) -> None:
    owner = Owner(server.port)
    wait_for(lambda: "up" in owner.log, what="the session")
    for i in range(20):
        owner.send(f"m{i}".encode())
    wait_for(lambda: "re:m19" in owner.log, what="the answers")
    assert [x for x in owner.log if x.startswith("re:m")] == [f"re:m{i}" for i in range(20)]
    owner.send(b"last words")
    owner.close()
    wait_for(lambda: b"last words" in server.heard, what="the last words")
    assert not any(x.startswith("down") for x in owner.log)  # we ended it ourselves


def test_a_session_that_ends_is_made_again(server: Server) -> None:
    owner = Owner(server.port)
    wait_for(lambda: owner.log.count("up") == 1, what="the session")
    loop.call(server.stop(), scaled(5.0))
    wait_for(lambda: any(x.startswith("down") for x in owner.log), what="the end to be noticed")
    owner.send(b"into the void")
    wait_for(lambda: "refused" in owner.uplink.last_failure, what="a failed reconnect")
    assert owner.uplink.away().startswith("the lighthouse at http://127.0.0.1:")
    loop.call(server.start(), scaled(5.0))
    wait_for(lambda: owner.log.count("up") == 2, what="the second session")
    assert b"into the void" not in server.heard  # what the owner still wants it says again
    owner.close()


def test_one_that_has_moved_is_found_where_it_is_written_down(server: Server) -> None:
    other = Server()
    owner = Owner(server.port, moved=other)
    wait_for(lambda: owner.log.count("up") == 1, what="the session")
    loop.call(server.stop(), scaled(5.0))
    wait_for(lambda: "refused" in owner.uplink.last_failure, what="a failed reconnect")
    loop.call(other.start(), scaled(5.0))
    wait_for(lambda: owner.log.count("up") == 2, what="the session with the one that has moved")
    owner.send(b"hello again")
    wait_for(lambda: "re:hello again" in owner.log, what="its answer")
    assert owner.uplink.address.port == other.port
    owner.close()
    loop.call(other.stop(), scaled(5.0))


def test_a_connect_that_nobody_answers_is_given_up_when_the_lighthouse_has_moved(server: Server) -> None:
    """Groups came up to a second after one another to the lighthouse that had taken over from a host without power."""
    server.mode, other = "mute", Server()
    owner = Owner(server.port, moved=other)
    wait_for(lambda: b"hello" in server.heard, what="the hello that is not answered")
    loop.call(other.start(), scaled(5.0))
    wait_for(lambda: owner.log == ["up"], what="the session with the one that has moved")
    assert owner.uplink.last_failure == "It has moved"
    owner.close()
    loop.call(other.stop(), scaled(5.0))


def test_the_lighthouse_says_how_often_to_ping() -> None:
    assert rhythm(pb.Welcome(heartbeat_timeout_s=5.0, ping_s=0.375)) == Keepalive(0.375, 5.0)
    assert Keepalive(0.375, 5.0).pings == 13
    assert rhythm(pb.Welcome(heartbeat_timeout_s=5.0)) == Keepalive(1.0, 5.0)  # an older lighthouse doesn't
    assert rhythm(pb.Welcome(heartbeat_timeout_s=1.0, ping_s=60.0)) == Keepalive(0.2, 1.0)
    assert Keepalive(1.0, 1.0).pings == MISSED_PINGS
    with pytest.raises(RefusedError):
        rhythm(pb.Welcome(heartbeat_timeout_s=5.0, ping_s=float("nan")))


def test_an_idle_session_is_pinged_and_a_silent_one_given_up(server: Server) -> None:
    owner = Owner(server.port, silence=0.1)
    wait_for(lambda: "re:ping" in owner.log, what="a ping")
    server.mode = "silent"
    wait_for(lambda: any("silent for" in x for x in owner.log), what="the silence to be noticed")
    server.mode = "echo"
    wait_for(lambda: owner.log.count("up") >= 2, what="the next session")
    owner.close()


def test_who_would_go_on_without_it_gives_a_silent_one_up_early(server: Server) -> None:
    """The other one waits for as long as the lighthouse says: 60 s here."""
    hasty, patient = Owner(server.port, eager=True), Owner(server.port)
    wait_for(lambda: hasty.log[:1] == patient.log[:1] == ["up"], what="both sessions")
    server.mode = "silent"
    hasty.send(b"more?")
    patient.send(b"more?")
    wait_for(lambda: any("down: it was silent for" in x for x in hasty.log), what="the silence to be noticed")
    assert not any("down" in x for x in patient.log)
    server.mode = "echo"
    hasty.close()
    patient.close()


def test_one_that_can_not_be_reached_is_left_at_once(server: Server) -> None:
    owner = Owner(1, others=(server.port,))
    wait_for(lambda: owner.log == ["up"], what="the session with the next one")
    loop.call(server.stop(), scaled(5.0))
    wait_for(lambda: len(owner.log) == 2, what="its end")
    loop.call(server.start(), scaled(5.0))
    wait_for(lambda: owner.log[-1] == "up", what="the session when it is back")
    assert owner.uplink.address.port == server.port
    owner.close()


def test_the_next_one_is_tried_when_the_session_can_not_be_made_again(server: Server) -> None:
    other = Server()
    loop.call(other.start(), scaled(5.0))
    owner = Owner(server.port, others=(other.port,))
    wait_for(lambda: owner.log == ["up"], what="the session with the first")
    loop.call(server.stop(), scaled(5.0))
    wait_for(lambda: owner.log.count("up") == 2, what="the session with the other")
    assert owner.uplink.address.port == other.port
    owner.close()
    loop.call(other.stop(), scaled(5.0))


@pytest.mark.parametrize("token", ["wrong", None])
def test_a_refusal_is_final(server: Server, token: str | None) -> None:
    if token is None:
        server.mode = "refuse"
    else:
        loop.call(server.stop(), scaled(5.0))
        loop.call(server.start(token="right"), scaled(5.0))
    owner = Owner(server.port, token)
    wait_for(lambda: owner.errors, what="the refusal")
    assert type(owner.errors[0]) is (TokenError if token else RefusedError)
    sessions = server.sessions

    async def a_while() -> None:
        await asyncio.sleep(0.3)  # six times the first pause: a retry would have come

    loop.call(a_while(), scaled(5.0))
    assert server.sessions == sessions
    owner.close()


@pytest.mark.parametrize("kind", ["another program", "another token"])
def test_a_stranger_at_the_address_of_one_that_was_lost_is_passed_over(server: Server, kind: str) -> None:
    stranger = Server()
    owner = Owner(server.port, others=(free_port(),))
    wait_for(lambda: "up" in owner.log, what="the session")
    loop.call(server.stop(), scaled(5.0))
    stranger.port = server.port
    if kind == "another program":
        stranger.service = "test.Other"
    loop.call(stranger.start("secret" if kind == "another token" else None), scaled(5.0))
    wait_for(lambda: "can't be reached" in owner.uplink.last_failure, what="the next of the list")
    wait_for(
        lambda: "refused" in owner.uplink.last_failure or "another" in owner.uplink.last_failure, what="a stranger"
    )
    assert not owner.errors
    loop.call(stranger.stop(), scaled(5.0))
    loop.call(server.start(), scaled(5.0))
    wait_for(lambda: owner.log.count("up") == 2, 20, "the session again")
    owner.close()
