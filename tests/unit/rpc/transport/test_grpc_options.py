"""Listening, advertising, and the notifier's thread."""

from __future__ import annotations

import threading

import pytest

from tests.util import wait_for
from torchft_x.net import Address
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.loop import Notifier


@pytest.mark.parametrize(
    ("bind", "host", "expected"),
    [
        (Address("127.0.0.1", 0), None, "http://127.0.0.1:7"),
        (Address("127.0.0.1", 0), "node1", "http://node1:7"),
        (Address("::", 0), "node1", "http://node1:7"),
        (Address("::1", 0), None, "http://[::1]:7"),
    ],
)
def test_advertised(bind: Address, host: str | None, expected: str) -> None:
    assert grpc_options.advertised(bind, 7, host).url == expected


def test_a_notifier_keeps_the_order_and_survives_a_callback_that_raises() -> None:
    notifier = Notifier("test")
    seen: list[object] = []

    def fail() -> None:
        raise KeyError("x")

    notifier.post(lambda: seen.append(threading.current_thread().name))
    notifier.post(fail)
    notifier.post(lambda: seen.append(2))
    notifier.close()
    wait_for(lambda: len(seen) == 2, what="the callbacks")
    assert seen == ["torchft_x-test", 2]
