"""Refused, accepted, unknown."""

from __future__ import annotations

import socket

import pytest

from torchft_x.rpc.lighthouse import probe
from torchft_x.rpc.transport import loop


def refused(address: str) -> bool:
    return loop.call(probe.is_refused(address), 10.0)


def test_a_listener_is_not_refused_and_its_end_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        assert not refused(f"http://127.0.0.1:{port}")
        assert not refused(f"http://localhost:{port}")
    assert refused(f"http://127.0.0.1:{port}")
    assert refused(f"http://localhost:{port}")  # every address of the name


@pytest.mark.parametrize("address", ["", "nonsense", "http://no.such.host.invalid:1"])
def test_what_cannot_be_asked_proves_nothing(address: str) -> None:
    assert not refused(address)


def test_probes_come_fast_first_and_end() -> None:
    pauses = list(probe.pauses(5.0))
    assert pauses[:5] == [0.01] * 5
    spent = 0.0
    for pause in pauses:
        assert pause <= max(0.01, 0.21 * spent)
        spent += pause
    assert len(pauses) < 50
    assert max(pauses) == 0.2
    assert 5.0 <= sum(pauses) < 5.3
