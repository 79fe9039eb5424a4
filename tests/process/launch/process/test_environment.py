"""The trainer's environment: pure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.util import scaled
from torchft_x.launch.process.environment import worker_environment
from torchft_x.net import Address


def test_a_workers_environment_is_torchruns(tmp_path: Path) -> None:
    """Of two nodes with two workers each, from torchrun itself."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\nf = open(os.path.dirname(os.path.abspath(__file__)) + '/found-' + os.environ['RANK'], 'w')\n"
        "json.dump(dict(os.environ), f)\n"
    )
    given = {**os.environ, "OMP_NUM_THREADS": "3"}
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2", "--rdzv_id", "run"]
    run += ["--master_addr", "127.0.0.1", "--master_port", str(_free_port()), "--max_restarts", "0"]
    nodes = [subprocess.Popen([*run, "--node_rank", str(n), str(script)], env=given) for n in (0, 1)]
    assert [node.wait(scaled(90)) for node in nodes] == [0, 0]
    for rank in range(4):
        theirs = json.loads((tmp_path / f"found-{rank}").read_text())
        store = Address(theirs["MASTER_ADDR"], int(theirs["MASTER_PORT"]))
        meet = {"name": "run", "local_rank": rank % 2, "workers": 2, "node": rank // 2, "nodes": 2}
        ours = worker_environment(given, store, "/f", **meet)
        of_a_process = {"TORCHELASTIC_ERROR_FILE", "TORCHINDUCTOR_CACHE_DIR", "PWD", "OLDPWD", "_", "LC_CTYPE"}
        assert {n: v for n, v in theirs.items() if n not in of_a_process} == {
            n: v for n, v in ours.items() if n not in of_a_process
        }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
