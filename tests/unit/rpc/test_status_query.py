"""Asking a lighthouse for its status."""

from __future__ import annotations

import socket

import pytest

from tests.unit.rpc.support import lighthouse
from torchft_x._version import __version__
from torchft_x.errors import DeadlineError, TokenError, UnreachableError
from torchft_x.net import Address, parse_address
from torchft_x.rpc.status_query import lighthouse_status
from torchft_x.rpc.transport import grpc_options


def test_it_says_who_it_is() -> None:
    with lighthouse(token="secret") as lh:
        address = parse_address(lh.address())
        status = lighthouse_status(address, "secret")
        assert (status["version"], status["wire"], status["members"]) == (__version__, grpc_options.WIRE, [])
        with pytest.raises(TokenError):
            lighthouse_status(address, None)


def test_nobody_there_and_nobody_answers() -> None:
    with pytest.raises(UnreachableError):
        lighthouse_status(Address("127.0.0.1", 9))
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises((DeadlineError, UnreachableError)):
        lighthouse_status(Address("127.0.0.1", mute.getsockname()[1]), timeout=0.2)
