"""States through real gloo groups: threads where both sides can live in one process, processes where one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.transfer.test_pg import (
    WAIT,
    store,  # noqa: F401
)
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.errors import TransferError
from torchft_x.transfer import PGTransport


def test_a_source_that_is_killed_in_the_middle(store: dist.TCPStore) -> None:
    """The receiver hears of it at once, and says that its tensors are torn."""
    address = f"127.0.0.1:{store.port}/killed"
    script = (
        "import os, torch\n"
        "from torchft_x.comm.gloo.group import ProcessGroupGloo\n"
        "from torchft_x.transfer import PGTransport\n"
        f"group = ProcessGroupGloo({WAIT}, host='127.0.0.1')\n"
        "print('imported', flush=True)\n"
        f"group.configure({address!r}, 'source', 0, 2, 1)\n"
        "state = {'a': torch.ones(1 << 20), 'b': torch.ones(1 << 25)}\n"
        "send = group.send\n"
        "def stall(tensors, rank, tag=0):\n"
        "    if tensors[0].numel() == 64 << 20:\n"
        "        print('middle', flush=True); os.kill(os.getpid(), 19)\n"
        "    return send(tensors, rank, tag)\n"
        "group.send = stall\n"
        f"PGTransport(group, {WAIT}, 'cpu').send_checkpoint([1], 5, state)\n"
    )
    source = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)
    group = ProcessGroupGloo(WAIT, host="127.0.0.1")
    try:
        assert source.stdout is not None
        assert source.stdout.readline() == "imported\n"  # which takes longer on a busy machine than a meeting may
        group.configure(address, "destination", 1, 2, 1)

        def kill() -> None:
            assert source.stdout is not None
            assert source.stdout.readline() == "middle\n"
            os.kill(source.pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        into = {"a": torch.zeros(1 << 20), "b": torch.zeros(1 << 25)}
        start = time.monotonic()
        with pytest.raises(TransferError, match="of replica rank 0 could not be moved") as caught:
            PGTransport[Any](group, WAIT, "cpu").recv_checkpoint(0, "", 5, into=into)
        assert time.monotonic() - start < WAIT / 2
        assert caught.value.torn
    finally:
        source.kill()
        source.communicate()
        group.shutdown()
