"""The host we advertise; addresses themselves are tested where they are used."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scenario import networks
from tests.scenario.cable import Pair
from tests.util import scaled
from torchft_x import env

NAMES = "import sys; from torchft_x import net; print(net.advertise_host())"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two machines with a cable between them, and neither names nor a way out."""
    if why := networks.missing():
        pytest.skip(why)
    with Pair() as machines:
        yield machines


def advertised(machines: Pair, side: str, **environ: str) -> str:
    """What it advertises, or the last line of its complaint."""
    keep = {k: v for k, v in env.everything().items() if not k.startswith(("TORCHFT", "SLURM"))}
    done = subprocess.run(
        [*machines.command(side), sys.executable, "-c", NAMES],
        capture_output=True, text=True, env={**keep, **environ}, timeout=scaled(30),
    )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("own_name", [None, "127.0.1.1"])
@pytest.mark.parametrize("family", ["4", "6"])
def test_names_that_lead_nowhere_are_not_needed(pair: Pair, family: str, own_name: str | None) -> None:
    pair.own_name(own_name)
    lighthouse = f"http://{pair.url_host('left', family)}:29510"
    assert advertised(pair, "right", TORCHFT_LIGHTHOUSE=lighthouse) == pair.address("right", family)
    assert advertised(pair, "left", TORCHFT_LIGHTHOUSE=lighthouse) == pair.address("left", family)


def test_an_interface(pair: Pair) -> None:
    pair.own_name(None)
    assert advertised(pair, "left", TORCHFT_X_ADVERTISE_INTERFACE="eth0") == pair.address("left", "4")
    assert advertised(pair, "left", TORCHFT_X_ADVERTISE_INTERFACE="six0") == "fd77:1::1"  # IPv4 there is none
    given = {"TORCHFT_X_ADVERTISE_INTERFACE": "eth0", "TORCHFT_X_ADVERTISE_HOST": "node7"}
    assert advertised(pair, "left", **given) == "node7"
    said = advertised(pair, "left", TORCHFT_X_ADVERTISE_INTERFACE="ib0")
    assert "TORCHFT_X_ADVERTISE_INTERFACE=ib0: this machine has no such network interface, but lo, " in said
    assert "no IPv4 and no global IPv6 address" in advertised(pair, "left", TORCHFT_X_ADVERTISE_INTERFACE="bare0")


def test_without_any_hint(pair: Pair) -> None:
    pair.own_name(None)
    assert advertised(pair, "left") == "127.0.0.1"
    pair.own_name("127.0.1.1")
    assert advertised(pair, "left") == socket.gethostname()
    pair.own_name(pair.address("left", "4"))
    assert advertised(pair, "left") == socket.gethostname()
