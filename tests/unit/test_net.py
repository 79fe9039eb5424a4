"""The host we advertise; addresses themselves are tested where they are used."""

from __future__ import annotations

import socket

import pytest

from torchft_x import env
from torchft_x.errors import AddressError
from torchft_x.net import advertise_host, parse_address

PLAIN = advertise_host(environ={})


def launched_from(address: str, **more: str) -> str:
    return advertise_host(environ={env.SLURM_LAUNCH_ADDRESS: address, **more})


def test_in_a_slurm_step_it_is_our_address_towards_the_launching_node() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # reserved for documentation: routed like any other, nothing is sent
            expected = s.getsockname()[0]
        except OSError:
            expected = PLAIN  # this machine has only the loopback
    assert launched_from("192.0.2.1") == expected


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "node1", "fe80::1%nowhere", ""])
def test_what_leads_nowhere_changes_nothing(address: str) -> None:
    assert launched_from(address) == PLAIN


def test_what_is_given_wins() -> None:
    assert advertise_host("me", environ={env.ADVERTISE_HOST: "other"}) == "me"
    assert launched_from("192.0.2.1", TORCHFT_X_ADVERTISE_HOST="ib0.node7") == "ib0.node7"


def test_a_malformed_lighthouse_is_complained_about_elsewhere() -> None:
    for text in ("nonsense", "http://", "http://a:b:c", ","):
        assert advertise_host(environ={env.LIGHTHOUSE: text}) == PLAIN


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "\u00b2", "-1", ""])
def test_a_port_that_is_none_is_a_sentence(port: str) -> None:
    """S11: of 5,000 digits it was a traceback."""
    with pytest.raises(AddressError, match="has no valid port") as e:
        parse_address(f"http://host:{port}")
    assert len(str(e.value)) < 500


@pytest.mark.parametrize("address", ["ftp://x:1", "http://:1", "http://a b:1"])
def test_an_address_that_is_none_is_quoted(address: str) -> None:
    with pytest.raises(AddressError, match=f"lighthouse '{address}'"):
        parse_address(address, what="lighthouse")
