"""Whoever has no token: nothing of theirs is gathered, and they don't keep others out. S3, S5."""

from __future__ import annotations

import os
import socket
import time

import pytest

from tests.unit.attacks.http2 import PREFACE
from tests.unit.rpc.support import lighthouse, where
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.rpc.coordination import LighthouseClient, LighthouseServer
from torchft_x.rpc.transport import grpc_options

GREETING = PREFACE + b"\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize("setting", ["off", "on"])
def test_idle_connections_take_a_part_of_the_descriptors_and_are_closed(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """S5: they took all, and neither a member's socket nor a newcomer's was left for 43 s. Every second one greets."""
    monkeypatch.setenv(env.TLS, setting)
    monkeypatch.setenv(env.TOKEN, "0123456789" * 4)
    monkeypatch.setattr(grpc_options, "lighthouse_connections", lambda limit: 40)
    with lighthouse() as server:
        before = len(os.listdir("/proc/self/fd"))
        crowd = []
        for number in range(200):
            s = socket.create_connection(where(server), timeout=scaled(5.0))
            s.setblocking(False)
            try:
                s.sendall(GREETING if number % 2 else b"")
            except OSError:
                pass  # closed already
            crowd.append(s)
        assert len(os.listdir("/proc/self/fd")) - before <= 200 + 40 + 10
        began = time.monotonic()
        wait_for(lambda: beats(server), grpc_options.IDLE_TIMEOUT + 10.0, "a newcomer to be heard")
        assert time.monotonic() - began < scaled(grpc_options.IDLE_TIMEOUT + 10.0)
        for s in crowd:
            s.close()


def beats(server: LighthouseServer) -> bool:
    try:
        LighthouseClient(server.address(), 1.0).heartbeat("a")
        return True
    except Exception:
        return False
