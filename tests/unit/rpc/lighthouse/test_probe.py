"""Refused, accepted, unknown."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.messages.lighthouse import Probe
from torchft_x.rpc.lighthouse import probe
from torchft_x.rpc.lighthouse.server import LighthouseShell
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


def test_a_probe_that_loses_its_cancellation_ends_with_the_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `asyncio.wait_for` may before Python 3.12: the next look-up came after the interpreter's executor had ended."""
    asked: list[str] = []

    async def run() -> None:
        shell = LighthouseShell(LighthouseConfig())

        async def is_refused(address: str) -> bool:
            asked.append(address)
            await shell.stop()  # cancels this probe
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            return False

        monkeypatch.setattr(probe, "is_refused", is_refused)
        monkeypatch.setattr(probe, "pauses", lambda _: iter([0.0, 0.0]))
        shell._probe(Probe("a:1", "http://a:1"))
        await asyncio.gather(*shell._probes.values())

    asyncio.run(run())
    assert asked == ["http://a:1"]
