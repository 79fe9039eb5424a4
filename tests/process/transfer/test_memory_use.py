"""How much memory a fetch takes in the receiver, seen from outside: the process's high-water mark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.util import scaled
from torchft_x.transfer import HTTPTransport

MEGABYTES = 256

RECEIVER = """
import json, sys, torch
from torchft_x.transfer import HTTPTransport
small, large, megabytes, in_place = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "in_place"
def peak():  # not ru_maxrss, which a child inherits from its parent
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
transport = HTTPTransport(60.0, host="127.0.0.1", token="")
transport.recv_checkpoint(0, small, 1, 60.0)  # imports, threads and scratch buffers are not the state's
into = {f"w{i}": torch.full((megabytes << 14,), 5.0) for i in range(16)}
before = peak()
result = transport.recv_checkpoint(0, large, 1, 60.0, into=into if in_place else None)
assert all(float(t.sum()) == t.numel() for t in result.values())
print(json.dumps(peak() - before))
"""


@pytest.mark.parametrize(("how", "least", "most"), [("in_place", 0.0, 0.05), ("fresh", 0.9, 1.2)])
def test_a_receiver_in_place_takes_no_memory_of_the_states_size(how: str, least: float, most: float) -> None:
    sources: list[HTTPTransport[Any]] = [HTTPTransport(scaled(60), host="127.0.0.1", token="") for _ in range(2)]
    try:
        sources[0].send_checkpoint([1], 1, {"w": torch.ones(1 << 20)}, 60.0)
        sources[1].send_checkpoint([1], 1, {f"w{i}": torch.ones(MEGABYTES << 14) for i in range(16)}, 60.0)
        arguments = [*(s.metadata() for s in sources), str(MEGABYTES), how]
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", RECEIVER, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            timeout=scaled(60),
        )
    finally:
        for source in sources:
            source.shutdown(wait=False)
    assert child.returncode == 0
    assert least <= json.loads(child.stdout) / (MEGABYTES << 20) <= most
