"""Ports, names and the lighthouse, with real sockets."""

from __future__ import annotations

import time

from torchft_x.launch.doctor import network
from torchft_x.launch.doctor.network import reverse_finding


def test_a_slow_reverse_look_up_says_what_it_costs_and_what_to_do() -> None:
    def slow(address: str) -> None:
        time.sleep(0.06 if address == "10.0.0.1" else 0.0)

    limit, network.SLOW_LOOKUP = network.SLOW_LOOKUP, 0.05
    try:
        found = reverse_finding(["127.0.0.1", "10.0.0.1"], slow)
    finally:
        network.SLOW_LOOKUP = limit
    assert found.level == "warning"
    assert "for 10.0.0.1" in found.text
    assert "/etc/hosts" in found.text
    assert "RES_OPTIONS='timeout:1 attempts:1'" in found.text
    assert reverse_finding(["127.0.0.1"], lambda _: None).level == "ok"
