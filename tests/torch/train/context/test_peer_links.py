"""Which hosts answer: a refused connect is an answer, silence is none, and nobody waits longer than was said."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from torchft_x.train.context.peer_links import unanswered


@pytest.fixture
def full() -> Iterator[str]:
    """A listener that accepts nobody and whose queue is full: further connects get no answer, as over a cut link."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_only_who_does_not_answer_is_named(full: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        port, closed = there.getsockname()[1], gone.getsockname()[1]
        gone.close()
        addresses = {
            "there": f"http://127.0.0.1:{port}",
            "closed": f"http://127.0.0.1:{closed}",
            "silent": full,
            "nameless": "",
            "unknown": "http://no.such.host.invalid:1",
        }
        assert unanswered(addresses, 0.3) == ("silent",)
        many = {f"n{i}": f"http://127.0.0.1:{port}" for i in range(100)}
        assert unanswered(many, 5.0) == ()
        assert unanswered({}, 5.0) == ()
