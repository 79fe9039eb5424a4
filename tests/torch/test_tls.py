"""With TLS every listener of a run refuses strangers in the handshake, and serves the run."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from tests.torch.train.test_parameter_server import Adder
from tests.unit.attacks.http2 import PREFACE
from tests.unit.rpc.support import group, lighthouse
from tests.util import scaled, wait_for
from torchft_x import env, net, tls
from torchft_x.comm.store.client import MeetingStore
from torchft_x.comm.store.connection import Connection
from torchft_x.comm.store.create import serve_store
from torchft_x.comm.store.wire import NAME
from torchft_x.comm.votes.all_min import AllMin
from torchft_x.comm.votes.ranks import Decision, Hub, RankVote, Spoke
from torchft_x.errors import TokenError, TransferError, UnreachableError
from torchft_x.rpc.coordination import LighthouseClient
from torchft_x.rpc.lighthouse.page import http as page_http
from torchft_x.rpc.lighthouse.page import start as page
from torchft_x.rpc.transport import loop
from torchft_x.transfer.http.transport import HTTPTransport

TOKEN = "0123456789" * 4
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TLS, "on")
    monkeypatch.setenv(env.TOKEN, TOKEN)
    monkeypatch.setattr(tls, "_token", None)


@contextlib.contextmanager
def listening(what: str) -> Iterator[int]:
    """Start a listener of this kind, and yield its port."""
    with contextlib.ExitStack() as stack:
        if what == "store":
            server, address = serve_store(HOST)
            stack.callback(server.close)
            yield address.port
        elif what == "vote":
            hub = Hub(HOST, 2)
            stack.callback(hub.close)
            assert hub._listener is not None
            yield hub._listener.getsockname()[1]
        elif what == "checkpoint":
            transport: HTTPTransport = HTTPTransport(host=HOST)
            stack.callback(transport.shutdown, False)
            yield int(transport.address().split(":")[2].split("/")[0])
        elif what == "parameter server":
            parameters = Adder()
            stack.callback(parameters.shutdown)
            yield parameters._http.port
        else:
            address = stack.enter_context(lighthouse()).address()
            if what == "group server":
                address = stack.enter_context(group("a:1", address, token=TOKEN)).address()
            yield net.parse_address(address).port


LISTENERS = ("store", "vote", "checkpoint", "parameter server", "lighthouse", "group server")


def answer(sock: socket.socket) -> bytes:
    """Return what a listener sends before it ends the connection; '' if it sends an alert."""
    received = b""
    with contextlib.suppress(OSError):
        while data := sock.recv(4096):
            received += data
    return b"" if received.startswith(b"\x15\x03") else received


def trusting(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let the client accept every server."""
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


ANYBODY = trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def half_hello() -> bytes:
    """Return the first half of a client's first message."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ANYBODY.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read(sent.pending // 2)


@pytest.mark.parametrize("what", LISTENERS)
def test_a_stranger_does_not_get_past_the_handshake(what: str) -> None:
    another = trusting(tls._derived("another-" * 5).context(ssl.PROTOCOL_TLS_CLIENT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tls, "_END", tls._BEGIN + timedelta(1))
        expired = trusting(tls._derived(TOKEN).context(ssl.PROTOCOL_TLS_CLIENT))
    with listening(what) as port:
        for hello in (PREFACE, b"GET /checkpoint/1/1 HTTP/1.1\r\n\r\n", NAME + bytes(48)):
            for context in (None, ANYBODY, another, expired):
                with socket.create_connection((HOST, port), scaled(20)) as sock:
                    try:
                        used = sock if context is None else context.wrap_socket(sock)
                        used.sendall(hello)
                    except OSError:
                        continue
                    assert answer(used) == b"", (hello, context)
                    used.close()


@pytest.mark.parametrize("what", [one for one in LISTENERS if one != "parameter server"])  # 64 keep others out for 10 s
def test_handshakes_that_never_end_keep_no_member_out(what: str) -> None:
    with listening(what) as port, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection((HOST, port), scaled(20))) for _ in range(100)]
        for sock in crowd:
            with contextlib.suppress(OSError):  # the oldest are closed for the newest
                sock.sendall(half_hello())
        member = tls.client(stack.enter_context(socket.create_connection((HOST, port), scaled(20))))
        assert isinstance(member, ssl.SSLSocket)
        member.do_handshake()
        most = 0 if what in ("lighthouse", "group server") else 64
        wait_for(lambda: len(crowd) - sum(map(is_closed, crowd)) <= most, 10.0, "the end of the others")


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return not sock.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_the_run_is_served() -> None:
    """The store, both votes, and a heal; the journeys have the rest."""
    server, at = serve_store(HOST)
    store = MeetingStore(Connection(net.Address(HOST, at.port), server.key, scaled(10)))
    store.set("a", "1" * 100_000)  # several records of TLS
    assert store.get("a") == b"1" * 100_000
    votes = [AllMin(HOST, 2) for _ in range(3)]
    rows: dict[int, list[int]] = {}

    def vote(rank: int) -> None:
        votes[rank].offer(f"{at.text}/votes", rank, ["a", "b", "c"], 1, scaled(20))
        votes[rank].connect(scaled(20))
        rows[rank] = votes[rank].minimum([rank, -rank], scaled(20))

    threads = [threading.Thread(target=vote, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows == {rank: [0, -2] for rank in range(3)}
    hub = Hub(HOST, 2)
    spoke = Spoke(hub.contact, 1, scaled(20))  # returns before the first step
    decisions: list[Decision] = []
    voter = threading.Thread(target=lambda: decisions.append(spoke.vote(RankVote(1, 2, True), scaled(20))))
    voter.start()
    assert hub.gather(1, 2, scaled(20)) == {1: RankVote(1, 2, True)}
    hub.decide(1, 2, Decision(True))
    voter.join()
    assert decisions == [Decision(True)]
    for end in (hub, spoke, server):
        end.close()


@pytest.mark.parametrize(("setting", "scheme"), [("on", "https"), ("control", "http")])
def test_a_state_is_copied(monkeypatch: pytest.MonkeyPatch, setting: str, scheme: str) -> None:
    monkeypatch.setenv(env.TLS, setting)
    source, reader = (HTTPTransport[dict[str, torch.Tensor]](host=HOST, shared_memory=False) for _ in range(2))
    assert source.address().startswith(f"{scheme}://")
    state = {"w": torch.arange(1_000_000), "b": torch.ones(3)}
    source.send_checkpoint([1], 3, state)
    copied = reader.recv_checkpoint(0, source.metadata(), 3, scaled(20))
    assert all(torch.equal(copied[name], state[name]) for name in state)
    monkeypatch.setenv(env.TLS, "off")
    with pytest.raises((TransferError, TokenError), match="with TLS" if setting == "on" else "token"):
        HTTPTransport[dict[str, torch.Tensor]](host=HOST, token="x" * 30).recv_checkpoint(
            0, source.metadata(), 3, scaled(20)
        )
    for one in (source, reader):
        one.shutdown(wait=False)


def test_clients_and_servers_that_do_not_fit_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def heartbeat(address: str) -> None:
        LighthouseClient(address, scaled(1.0)).heartbeat("a")

    with lighthouse() as server:
        heartbeat(server.address())
        monkeypatch.setenv(env.TOKEN, "another-" * 5)
        monkeypatch.setattr(tls, "_token", None)
        with pytest.raises(UnreachableError, match="its certificate is not of this run"):
            heartbeat(server.address())
        monkeypatch.setenv(env.TLS, "off")
        with pytest.raises(UnreachableError, match="as it does if it speaks TLS and we don't"):
            heartbeat(server.address())
        with lighthouse() as plain:
            monkeypatch.setenv(env.TLS, "on")
            with pytest.raises(UnreachableError, match="it does not speak TLS"):
                heartbeat(plain.address())


def test_the_page_is_https_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with lighthouse() as server:
        shown = loop.call(page.start(server._shell, f"{HOST}:0", 1, server.address()), 10.0)
        where = net.parse_address(shown.url)
        connection = http.client.HTTPSConnection(where.host, where.port, timeout=scaled(20), context=ANYBODY)
        for _ in range(2):
            connection.request("GET", "/status.json")
            response = connection.getresponse()
            assert (response.status, b'"version"' in response.read()) == (200, True)
        connection.close()
        plain = http.client.HTTPConnection(where.host, where.port, timeout=scaled(20))
        plain.request("GET", "/")
        assert b"begin its address with https://" in plain.getresponse().read()
        monkeypatch.setattr(page_http, "ANSWER", 0.2)
        with socket.create_connection(where, scaled(20)) as slow:
            slow.sendall(half_hello())
            assert answer(slow) == b""
        loop.call(shown.close(), 5.0)
