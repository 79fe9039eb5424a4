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


def reaches(nets: Networks, here: str, there: str, seconds: float | None = None) -> bool:
    client = _python(nets, here, CONNECT, nets.address(there), str(seconds or scaled(1.0)))
    client.communicate(timeout=scaled(30))
    return client.returncode == 0


def is_cut(nets: Networks, here: str, there: str) -> bool:
    """This time has to run out, so it is short on every machine."""
    return not reaches(nets, here, there, 0.4)


def test_a_link_between_two_is_cut_both_ways_and_mended(machines: Networks) -> None:
    assert reaches(machines, "a", "b")
    machines.cut("a", "b")
    machines.cut("a", "b")
    assert [is_cut(machines, *pair) for pair in ("ab", "ba")] == [True, True]
    assert [reaches(machines, *pair) for pair in ("ac", "cb")] == [True, True]
    machines.mend("a", "b")
    assert is_cut(machines, "a", "b")  # it was cut twice
    machines.mend("a", "b")
    assert reaches(machines, "a", "b")
    assert reaches(machines, "b", "a")


def test_a_machine_is_unplugged_and_loses_its_power_and_comes_back_at_the_same_address(machines: Networks) -> None:
    machines.unplug("a")
    assert [is_cut(machines, *pair) for pair in ("ab", "ba")] == [True, True]
    assert reaches(machines, "b", "c")
    machines.plug("a")
    # One attempt is not enough: a client that asks while the link comes up is told that there is no route.
    wait_for(lambda: reaches(machines, "b", "a"), 20.0)
    before = machines.address("a")
    machines.remove("a")
    assert is_cut(machines, "b", "a")
    machines.add("a")
    assert machines.address("a") == before
    wait_for(lambda: reaches(machines, "a", "b"), 20.0)
