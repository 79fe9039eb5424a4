"""Machines in namespaces: links are cut and mended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scenario import networks
from tests.scenario.networks import Networks
from tests.util import scaled, wait_for

SERVE = "import socket; s = socket.create_server(('0.0.0.0', 7000)); print(flush=True)\nwhile True: s.accept()[0].send(b'!')"
CONNECT = "import socket, sys; print(socket.create_connection((sys.argv[1], 7000), float(sys.argv[2])).recv(1))"


@pytest.fixture
def machines() -> Iterator[Networks]:
    """a, b and c; everybody answers on port 7000."""
    if why := networks.missing():
        pytest.skip(why)
    with Networks() as nets:
        servers = []
        for host in "abc":
            nets.add(host)
            servers.append(_python(nets, host, SERVE))
        for server in servers:
            assert server.stdout is not None
            server.stdout.readline()
        yield nets
    for server in servers:
        server.wait(scaled(10))


def _python(nets: Networks, host: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*nets.command(host), sys.executable, "-c", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def reaches(nets: Networks, here: str, there: str, seconds: float) -> bool:
    client = _python(nets, here, CONNECT, nets.address(there), str(seconds))
    client.communicate(timeout=scaled(30))
    return client.returncode == 0


def are_joined(nets: Networks, *pairs: str) -> bool:
    """Whether each of these reaches the other, and the other way round."""
    both = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
    return all(reaches(nets, *pair, scaled(1.0)) for pair in both)


def are_cut(nets: Networks, pair: str) -> bool:
    """Whether neither reaches the other. This time has to run out, so it is short on every machine."""
    return not any(reaches(nets, a, b, 0.4) for a, b in (pair, pair[::-1]))


def test_a_link_is_cut_and_mended(machines: Networks) -> None:
    machines.cut("a", "b")
    machines.cut("a", "b")
    assert are_cut(machines, "ab")
    assert are_joined(machines, "ac", "cb")
    machines.mend("a", "b")
    assert are_cut(machines, "ab")  # it was cut twice
    machines.mend("a", "b")
    assert are_joined(machines, "ab")


def test_a_machine_is_unplugged_and_loses_its_power_and_comes_back_at_the_same_address(machines: Networks) -> None:
    machines.unplug("a")
    assert are_cut(machines, "ab")
    assert are_joined(machines, "bc")
    machines.plug("a")
    # One attempt is not enough: a client that asks while the link comes up is told that there is no route.
    wait_for(lambda: reaches(machines, "b", "a", scaled(1.0)), 20.0)
    before = machines.address("a")
    machines.remove("a")
    assert not reaches(machines, "b", "a", 0.4)
    machines.add("a")
    assert machines.address("a") == before
    wait_for(lambda: reaches(machines, "a", "b", scaled(1.0)), 20.0)
