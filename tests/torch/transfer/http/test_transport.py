from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from tests.torch.train.fakes import background
from tests.torch.transfer.conformance import WAIT, Pair, TransportConformance
from tests.torch.transfer.format.test_layout import manifest
from tests.torch.transfer.states import same
from tests.util import scaled
from torchft_x.errors import ConfigError, TokenError, TransferError
from torchft_x.transfer import HTTPTransport
from torchft_x.transfer.format.limits import ALIGNMENT, BLOCK_BYTES
from torchft_x.transfer.http import server
from torchft_x.transfer.http.wire import DIGEST_BYTES

State = dict[str, torch.Tensor]
HTTP = HTTPTransport[Any]
SIZE = 4 << 20  # elements; 16 MiB, far more than the kernel's buffers hold for a reader that does not read

ONES = b"\x00\x00\x80\x3f" * SIZE  # 1.0, SIZE times


def make(streams: int = 0, *, token: str | None = "secret", **kwargs: Any) -> HTTP:
    return HTTPTransport(WAIT, streams, host="127.0.0.1", token=token, **kwargs)


Make = Callable[..., HTTP]


@pytest.fixture
def made() -> Iterator[Make]:
    """Make transports that are shut down when the test is over."""
    with contextlib.ExitStack() as stack:

        def one(*args: Any, **kwargs: Any) -> HTTP:
            transport = make(*args, **kwargs)
            stack.callback(transport.shutdown, wait=False)
            return transport

        yield one


@pytest.fixture
def source(made: Make) -> HTTP:
    return made()


@pytest.fixture
def destination(made: Make) -> HTTP:
    """As if on another host; test_shared_memory.py has the case of one host."""
    return made(shared_memory=False)


class TestHTTPTransport(TransportConformance):
    @pytest.fixture(params=[(0, True), (0, False), (1, False), (4, False)])
    def pair(self, request: pytest.FixtureRequest, made: Make) -> Pair:
        streams, shared = request.param
        return made(streams, shared_memory=shared), made(streams, shared_memory=shared)


def big(value: float) -> State:
    return {"a": torch.full((SIZE,), float(value)), "small": torch.full((5,), float(value))}


class RawReader:
    """A reader under the test's control: asks for a manifest and all blocks, and reads when told."""

    def __init__(self, source: HTTP, step: int, token: str = "secret") -> None:
        parts = urlsplit(source.metadata())
        assert parts.hostname is not None
        self.headers = {"Authorization": f"Bearer {token}"}
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT)
        self.connection.request("GET", f"/checkpoint/{step}/0", headers=self.headers)
        self.manifest = self.connection.getresponse()
        self.manifest.read()

    def begin(self, blocks: int) -> http.client.HTTPResponse:
        path = f"/snapshot/{self.manifest.headers['X-Snapshot']}/0/{blocks}"
        self.connection.request("GET", path, headers=self.headers)
        return self.connection.getresponse()


def without_digests(body: bytes) -> bytes:
    line = BLOCK_BYTES + DIGEST_BYTES
    return b"".join(body[at : at + BLOCK_BYTES] for at in range(0, len(body), line))


def test_blocks_lie_in_the_stream_as_in_memory(source: HTTP) -> None:
    """Each as many bytes from the beginning of a line of the cache: copies between other places are slow."""
    source.send_checkpoint([1], 1, big(1), WAIT)
    reader = RawReader(source, 1)
    path = f"/snapshot/{reader.manifest.headers['X-Snapshot']}/0/2"
    reader.connection.request("GET", path, headers=reader.headers)
    body = reader.connection.getresponse().read()
    second = len(body) // 2
    assert body[second : second + BLOCK_BYTES] == ONES[:BLOCK_BYTES]
    assert second % ALIGNMENT == 0


def test_a_slow_reader_blocks_nothing_and_gets_the_frozen_bytes(source: HTTP) -> None:
    state = big(1)
    source.send_checkpoint([1], 1, state, WAIT)
    response = RawReader(source, 1).begin(16)
    # The reader has not read a byte of 16 MiB when all this is done: had any call waited for it, we would hang.
    for step in range(2, 7):
        source.disallow_checkpoint()
        state["a"].fill_(step)
        source.send_checkpoint([1], step, state, WAIT)
        if step <= 3:
            source.send_checkpoint([1], step, state, WAIT)
    assert without_digests(response.read()) == ONES


class Proxy:
    """A TCP relay in front of a source. `change(connection number, offset, chunk)` sees what the source sends and
    returns what goes on, or None to cut the connection.
    """

    def __init__(self, target: str, change: Callable[[int, int, bytes], bytes | None]) -> None:
        parts = urlsplit(target)
        self.upstream = (parts.hostname, parts.port)
        self.change = change
        self.count = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.metadata = f"http://127.0.0.1:{self.listener.getsockname()[1]}/checkpoint/"
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                down, _ = self.listener.accept()
                up = socket.create_connection(self.upstream)
            except OSError:
                return
            self.sockets += [down, up]
            # Closed when neither direction uses them: one that is only shut takes bytes until its buffer is full, and
            # the source waits.
            ended = threading.Barrier(2, action=lambda pair=(down, up): [s.close() for s in pair])
            change = partial(self.change, self.count)
            self.count += 1
            for a, b, what in ((down, up, lambda offset, chunk: chunk), (up, down, change)):
                threading.Thread(target=self._pump, args=(a, b, what, ended), daemon=True).start()

    def _pump(
        self,
        a: socket.socket,
        b: socket.socket,
        change: Callable[[int, bytes], bytes | None],
        ended: threading.Barrier,
    ) -> None:
        offset = 0
        try:
            while chunk := a.recv(1 << 16):
                out = change(offset, chunk)
                offset += len(chunk)
                if out is None:
                    break
                b.sendall(out)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        ended.wait()

    def close(self) -> None:
        self.listener.close()
        for s in self.sockets:
            s.close()


@pytest.fixture
def relay(source: HTTP) -> Iterator[Callable[[Callable[[int, int, bytes], bytes | None]], Proxy]]:
    made: list[Proxy] = []

    def make(change: Callable[[int, int, bytes], bytes | None]) -> Proxy:
        made.append(Proxy(source.metadata(), change))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


Relay = Callable[[Callable[[int, int, bytes], bytes | None]], Proxy]


def test_a_flipped_bit_is_detected_and_named(source: HTTP, destination: HTTP, relay: Relay) -> None:
    def flip(number: int, offset: int, chunk: bytes) -> bytes:
        if offset <= 3_000_000 < offset + len(chunk):
            damaged = bytearray(chunk)
            damaged[3_000_000 - offset] ^= 4
            return bytes(damaged)
        return chunk

    source.send_checkpoint([1], 1, {"model": big(1)}, WAIT)
    into = {"model": big(0)}
    with pytest.raises(TransferError, match=r"digest of block \d+ .* model/a") as caught:
        destination.recv_checkpoint(0, relay(flip).metadata, 1, WAIT, into=into)
    assert caught.value.torn
    with pytest.raises(TransferError, match="digest") as caught:
        destination.recv_checkpoint(0, relay(flip).metadata, 1, WAIT)
    assert not caught.value.torn  # nothing of the caller's was written


def test_a_damaged_manifest_is_detected(source: HTTP, destination: HTTP, relay: Relay) -> None:
    source.send_checkpoint([1], 1, {"name": "aaaa"}, WAIT)
    proxy = relay(lambda number, offset, chunk: chunk.replace(b"aaaa", b"aaab"))
    with pytest.raises(TransferError, match="damaged"):
        destination.recv_checkpoint(0, proxy.metadata, 1, WAIT)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_cut_connections_are_resumed(source: HTTP, made: Make, relay: Relay, streams: int) -> None:
    proxy = relay(lambda number, offset, chunk: None if offset > 1_500_000 and number < 7 else chunk)
    receiver = made(streams, shared_memory=False)
    source.send_checkpoint([1], 1, big(3), WAIT)
    into = big(0)
    result = receiver.recv_checkpoint(0, proxy.metadata, 1, WAIT, into=into)
    assert same(into, big(3))
    assert result["a"] is into["a"]
    assert proxy.count > streams


def test_cut_for_ever_ends_at_the_deadline(source: HTTP, destination: HTTP, relay: Relay) -> None:
    proxy = relay(lambda number, offset, chunk: None if offset > 200_000 else chunk)
    source.send_checkpoint([1], 1, big(3), WAIT)
    with pytest.raises(TransferError, match="deadline") as caught:
        destination.recv_checkpoint(0, proxy.metadata, 1, 0.5, into=big(0))
    assert caught.value.torn


@contextlib.contextmanager
def answering(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A source whose connections `serve` answers; its metadata."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/checkpoint/"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("what", ["manifest", "blocks"])
def test_a_source_that_drips_ends_at_the_deadline(destination: HTTP, what: str) -> None:
    """The deadline holds although no single read is slow: a byte every 50 ms."""
    text = manifest(blobs=[4 << 20], tensors=[["uint8", [4 << 20], [1], 0, 0]])
    head = f"X-Snapshot: {'a' * 16}\r\nX-Crc32: {zlib.crc32(text)}\r\n".encode()
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        while request := connection.recv(4096):
            first = request.split()[1] == b"/checkpoint/1/0"
            body = text if first else bytes((2 << 20) + 2 * DIGEST_BYTES)
            out = b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (head if first else b"", len(body)) + body
            if first and what == "blocks":
                connection.sendall(out)
                continue
            begin = 0 if first else 5000
            connection.sendall(out[:begin])
            for byte in out[begin:]:
                connection.sendall(bytes([byte]))
                if done.wait(0.05):
                    return

    with answering(serve) as metadata, pytest.raises(TransferError, match="deadline"):
        destination.recv_checkpoint(0, metadata, 1, 0.5)
    done.set()


def test_what_the_source_said_is_told_although_it_then_falls_silent(destination: HTTP) -> None:
    """On a busy machine the last answer may come too late; the reason came with the one before."""
    text = b"it is at step 5"

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        while connection.recv(4096):
            pass

    with answering(serve) as metadata, pytest.raises(TransferError, match="until the deadline: it is at step 5"):
        destination.recv_checkpoint(0, metadata, 6, scaled(0.5))


def test_an_unknown_host_is_noticed_before_the_deadline(destination: HTTP) -> None:
    with pytest.raises(TransferError, match=r"TORCHFT_X_ADVERTISE_HOST|deadline"):
        destination.recv_checkpoint(0, "http://no-such-host.invalid:1/checkpoint/", 1, WAIT)


def test_a_source_that_is_gone_is_noticed_before_the_deadline(source: HTTP, destination: HTTP) -> None:
    metadata = source.metadata()
    source.shutdown()
    with pytest.raises(TransferError, match="nobody listens"):
        destination.recv_checkpoint(0, metadata, 1, 1e6)


@pytest.mark.parametrize("token", ["wrong", "", "secre", "secret2", "~"])
def test_a_wrong_or_missing_token_is_refused_at_once(source: HTTP, made: Make, token: str) -> None:
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    with pytest.raises(TokenError, match="TORCHFT_X_TOKEN"):
        made(token=token).recv_checkpoint(0, source.metadata(), 1, 1e6)


def test_blocks_need_the_token_too(source: HTTP) -> None:
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    reader = RawReader(source, 1)
    reader.headers = {}
    assert reader.begin(1).status == 401


@pytest.mark.parametrize("framing", [{"Content-Length": "4"}, {"Transfer-Encoding": "chunked"}])
def test_a_request_with_a_body_is_the_last_one(source: HTTP, framing: dict[str, str]) -> None:
    """T2: the body was read as the next request of the connection."""
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    reader = RawReader(source, 1)
    reader.connection.request("GET", "/checkpoint/1/0", headers={**reader.headers, **framing})
    answer = reader.connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"a request has no body here")
    assert reader.connection.sock.recv(1) == b""


PATHS = [
    "/", "/checkpoint/1", "/checkpoint/x/0", "/checkpoint/1/0/../..", "/snapshot/0/0/1", "/etc/passwd", "/checkpoint/-1/0",
]  # fmt: skip


@pytest.mark.parametrize("path", [*PATHS, *(f"/snapshot/ID/{blocks}" for blocks in ("0/0", "0/2", "1/1", "5/9"))])
def test_unknown_paths_and_blocks_outside_the_snapshot_are_404(source: HTTP, path: str) -> None:
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    reader = RawReader(source, 1)
    path = path.replace("ID", reader.manifest.headers["X-Snapshot"])
    reader.connection.request("GET", path, headers=reader.headers)
    assert reader.connection.getresponse().status == 404


@pytest.mark.parametrize(
    "metadata",
    ["", "nonsense", "http://h:1", "https://h:1/checkpoint/", "http://h:99999/checkpoint/", "http://[::1/checkpoint/"],
)
def test_unusable_metadata_is_a_transfer_error(destination: HTTP, metadata: str) -> None:
    with pytest.raises(TransferError, match="metadata"):
        destination.recv_checkpoint(0, metadata, 1, WAIT)


def test_connections_without_a_token_keep_nobody_out(
    source: HTTP, destination: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    parts = urlsplit(source.metadata())
    silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(2)]
    assert destination.recv_checkpoint(0, source.metadata(), 1, WAIT)["w"].item() == 1
    for s in silent:
        s.close()


def test_a_request_without_an_end_is_cut_off(source: HTTP, destination: HTTP) -> None:
    """S11: 80 of them took a gigabyte before the token was seen."""
    parts = urlsplit(source.metadata())
    for line in (b"GET /" + b"x" * 60_000 + b"\r\n", b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 60_000 + b"\r\n"):
        with socket.create_connection((parts.hostname, parts.port), timeout=WAIT) as s:
            taken = 0
            try:
                s.sendall(line)
                while taken < 64 << 20:  # whatever the sockets' buffers take
                    taken += s.send(b"X-More: " + b"x" * 60_000 + b"\r\n")
            except OSError:
                pass
            assert taken < 64 << 20
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    assert destination.recv_checkpoint(0, source.metadata(), 1, WAIT)["w"].item() == 1


def test_more_readers_than_connections_wait_their_turn(
    source: HTTP, destination: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    source.send_checkpoint([1], 1, {"w": torch.ones(1)}, WAIT)
    parked = [RawReader(source, 1), RawReader(source, 1)]
    threading.Timer(0.1, lambda: [p.connection.close() for p in parked]).start()
    assert destination.recv_checkpoint(0, source.metadata(), 1, WAIT)["w"].item() == 1


def test_shutdown_lets_a_reader_finish_and_frees_the_port(source: HTTP) -> None:
    source.send_checkpoint([1], 1, big(1), WAIT)
    reader = RawReader(source, 1)
    response = reader.begin(16)
    closing = background(source.shutdown)
    assert without_digests(response.read()) == ONES
    reader.connection.close()
    closing.result(WAIT)
    assert_free(source)


def assert_free(source: HTTP) -> None:
    with socket.create_server(("127.0.0.1", urlsplit(source.metadata()).port or 0)):
        pass


def test_shutdown_without_wait_cuts_readers_off(source: HTTP) -> None:
    source.send_checkpoint([1], 1, big(1), WAIT)
    response = RawReader(source, 1).begin(16)
    source.shutdown(wait=False)
    assert_free(source)  # although its ends of the connections linger: it was the first to close them
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()


def test_the_advertised_host_is_the_argument_then_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_ADVERTISE_HOST", "node7.example")
    for host, expected in ((None, "http://node7.example:"), ("fd00::1", "http://[fd00::1]:")):
        transport: HTTP = HTTPTransport(1.0, host=host)
        assert transport.metadata().startswith(expected)
        transport.shutdown()


def test_the_token_comes_from_the_environment(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_TOKEN", "from-env")
    source, member, stranger = (made(token=t) for t in (None, "from-env", ""))
    source.send_checkpoint([1], 1, {"w": 1}, WAIT)
    assert member.recv_checkpoint(0, source.metadata(), 1, WAIT) == {"w": 1}
    with pytest.raises(TokenError):
        stranger.recv_checkpoint(0, source.metadata(), 1, WAIT)


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="num_chunks"):
        HTTPTransport(1.0, -1)
    with pytest.raises(ConfigError, match="timeout"):
        HTTPTransport(0)
    with pytest.raises(ConfigError, match="token"):
        HTTPTransport(1.0, token="sécret\n")
