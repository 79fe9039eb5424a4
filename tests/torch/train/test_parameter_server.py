"""A parameter server and its clients: real processes, real gloo, a killed client, a wrong token."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x import net
from torchft_x.comm import ProcessGroup, ProcessGroupGloo
from torchft_x.comm.store.create import split_store_address
from torchft_x.errors import (
    AddressError,
    CollectiveError,
    ConfigError,
    DeadlineError,
    RefusedError,
    TokenError,
    TorchftXError,
    UnreachableError,
)
from torchft_x.train.parameter_server import ParameterServer

HOST = "127.0.0.1"


class Adder(ParameterServer):
    """Adds up what it is sent, and answers with the client's own sum."""

    def __init__(self, **kwargs: Any) -> None:
        self.total = torch.zeros(3)
        self.lock = threading.Lock()
        self.ids: list[str] = []
        super().__init__(0, host=HOST, **kwargs)

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        return ProcessGroupGloo(scaled(20.0), host=HOST)

    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        assert (pg.rank(), pg.size()) == (0, 2)
        mine = torch.zeros(3)
        with self.lock:
            self.ids.append(session_id)
        while True:
            t = torch.zeros(3)
            pg.recv([t], 1).wait()
            if t[0] < 0:
                raise ValueError("no negative numbers")
            mine += t
            with self.lock:
                self.total += t
            pg.broadcast_one(mine.clone(), 0).wait()


@contextmanager
def serving(**kwargs: Any) -> Iterator[Adder]:
    server = Adder(**{"token": "", **kwargs})
    try:
        yield server
    finally:
        server.shutdown()


def add(pg: ProcessGroup, value: float) -> float:
    pg.send([torch.full((3,), value)], 0).wait()
    t = torch.zeros(3)
    pg.broadcast_one(t, 0).wait()
    return float(t[0])


def client(pipe: Connection, address: str, token: str) -> None:
    pg = Adder.new_session(address, token=token, timeout=scaled(10))
    pipe.send("ready")
    while (value := pipe.recv()) is not None:
        pipe.send(add(pg, value))
    pg.shutdown()
    pipe.send("left")


class Clients:
    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.torch.train.test_parameter_server"])
        self.processes: list[Any] = []

    def start(self, address: str, token: str = "") -> tuple[Any, Connection]:
        mine, theirs = self.context.Pipe()
        process = self.context.Process(target=client, args=(theirs, address, token), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        return process, mine


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    for process in made.processes:
        process.kill()
        process.join()


def heard(pipe: Connection) -> Any:
    assert pipe.poll(scaled(20)), "the client says nothing"
    return pipe.recv()


def told(pipe: Connection, value: float | None) -> Any:
    pipe.send(value)
    return heard(pipe)


def test_several_sessions_at_once_and_a_killed_client_ends_only_its_own(clients: Clients) -> None:
    with serving(token="secret") as server:
        started = [clients.start(server.address(), "secret") for _ in range(3)]
        pipes = [pipe for _, pipe in started]
        assert [heard(pipe) for pipe in pipes] == ["ready"] * 3
        assert server.num_sessions() == 3
        assert [told(pipe, k + 1.0) for k, pipe in enumerate(pipes)] == [1.0, 2.0, 3.0]
        started[1][0].kill()
        wait_for(lambda: server.num_sessions() == 2, what="the killed client's session to end")
        assert [told(pipes[k], 10.0) for k in (0, 2)] == [11.0, 13.0]
        assert told(pipes[0], None) == "left"
        wait_for(lambda: server.num_sessions() == 1, what="the session of who left to end")
        _, pipe = clients.start(server.address(), "secret")
        assert heard(pipe) == "ready"
        assert told(pipe, 5.0) == 5.0
        assert server.total.tolist() == [31.0] * 3
        assert len(set(server.ids)) == 4


def test_a_wrong_token_gets_no_session() -> None:
    with serving(token="secret") as server:
        for token in ("", "wrong", "secre", "secret2"):
            with pytest.raises(TokenError, match=r"the token is missing or wrong; set TORCHFT_X_TOKEN"):
                Adder.new_session(server.address(), token=token)
        assert server.num_sessions() == 0
        assert "secret" not in repr(server)
        pg = Adder.new_session(server.address(), token="secret")
        assert add(pg, 1.0) == 1.0
        pg.shutdown()


def test_a_session_that_fails_is_over_for_its_client_and_nobody_else() -> None:
    with serving() as server:
        good, bad = (Adder.new_session(server.address()) for _ in range(2))

        def of_clients() -> list[str]:
            return [key for key in server._store.keys() if key.endswith("/torchft_x/1")]  # noqa: SIM118

        wait_for(lambda: len(of_clients()) == 2, what="both clients to have written their last keys")
        with pytest.raises(CollectiveError):
            add(bad, -1.0)
        assert add(good, 2.0) == 2.0
        wait_for(lambda: server.num_sessions() == 1, what="the failed session to end")

        def of_sessions() -> set[str]:
            return {k.split("session/")[1].split("/")[0] for k in server._store.keys() if "session" in k}  # noqa: SIM118

        wait_for(lambda: len(of_sessions()) == 1, what="the failed session's keys to be deleted")
        assert of_sessions() <= set(server.ids)
        for pg in (good, bad):
            pg.shutdown()


def test_a_stranger_can_not_take_a_clients_session() -> None:
    """He reaches the store's port, and knows the session's name."""
    with serving(token="secret") as server:
        status = json.loads(ask(server, token="secret")[1])
        address, prefix = split_store_address(status["store_addr"])
        stranger = ProcessGroupGloo(0.5, host=HOST)
        with pytest.raises(TorchftXError):
            stranger.configure(f"{address.target}/{prefix}", "client", 1, 2)
        client = Adder.new_process_group()
        client.configure(status["store_addr"], "client", 1, 2)  # who has it from the server
        assert add(client, 1.0) == 1.0
        client.shutdown()


def test_there_are_only_so_many() -> None:
    with serving(max_sessions=1) as server:
        first = Adder.new_session(server.address())
        with pytest.raises(RefusedError, match=r"refuses us \(503\): no session is free; try again"):
            Adder.new_session(server.address())
        first.shutdown()
        wait_for(lambda: server.num_sessions() == 0, what="the first session to end")
        second = Adder.new_session(server.address())
        assert add(second, 1.0) == 1.0
        second.shutdown()
    with pytest.raises(ConfigError, match="max_sessions=0"):
        Adder(max_sessions=0)


def test_shutdown_ends_the_sessions_and_frees_the_port() -> None:
    with serving() as server:
        pg = Adder.new_session(server.address())
        assert add(pg, 1.0) == 1.0
        server.shutdown()
        with pytest.raises(CollectiveError):
            add(pg, 1.0)
        with pytest.raises(UnreachableError, match="Connection refused"):
            Adder.new_session(server.address())
        pg.shutdown()
        server.shutdown()
        assert server.num_sessions() == 0


def ask(server: ParameterServer, path: str = "/new_session", token: str = "") -> tuple[int, str]:
    where = net.parse_address(server.address().removesuffix("/new_session"))
    connection = http.client.HTTPConnection(where.host, where.port, timeout=scaled(10))
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_the_wire_is_the_peers() -> None:
    with serving() as server:
        status, text = ask(server)
        answer = json.loads(text)
        assert status == 200
        assert answer["store_addr"].endswith(f"/session/{answer['session_id']}")
        assert ask(server, "/")[0] == 404


def test_garbage_and_silence_do_not_keep_others_out() -> None:
    with serving() as server:
        where = net.parse_address(server.address().removesuffix("/new_session"))
        silent = socket.create_connection(where)
        rude = socket.create_connection(where)
        rude.sendall(b"\0\xff" * 40_000 + b"\r\n\r\n")
        pg = Adder.new_session(server.address())
        assert add(pg, 1.0) == 1.0
        for s in (silent, rude):
            s.close()
        pg.shutdown()


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1:1/new_session", "http://127.0.0.1:1", "http://127.0.0.1/new_session", "http://nobody.invalid:1/new_session"]
)  # fmt: skip
def test_addresses_that_cannot_be_right(url: str) -> None:
    with pytest.raises(AddressError):
        Adder.new_session(url)


def test_somebody_else_answers_or_nobody() -> None:
    with socket.create_server((HOST, 0)) as other:
        address = f"http://{HOST}:{other.getsockname()[1]}/new_session"
        with pytest.raises(DeadlineError, match="did not answer within"):
            Adder.new_session(address, timeout=0.2)
        other.accept()[0].close()

        def answer(body: bytes) -> None:
            while True:
                connection, _ = other.accept()
                with connection:
                    if connection.recv(4096):
                        head = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                        connection.sendall(head + body)
                        return

        for body in (b"hello", b"[]", b'{"store_addr": 7}', b'{"store_addr": "x"}', b"[" * 4000):
            answered = background(lambda body=body: answer(body))
            with pytest.raises(RefusedError, match="which is no session"):
                Adder.new_session(address, timeout=scaled(10))
            answered.result(scaled(10))
