"""Groups over several nodes as real processes: a lighthouse, a supervisor per node, toy scripts. All on this host."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.process.launch.supervisor.test_coordination import (
    SLEEPER,
    Cluster,
    cluster,  # noqa: F401
    sleeping,
)
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events

MEETING = """if True:
    import os, sys, time, pathlib
    import torch, torch.distributed as dist
    e = os.environ
    dist.init_process_group("gloo")
    t = torch.ones(1)
    dist.all_reduce(t)
    print("met", e["REPLICA_GROUP_ID"], e["TORCHFT_X_ATTEMPT"], e["RANK"], e["WORLD_SIZE"], e["LOCAL_RANK"],
          e["GROUP_RANK"], int(t), e["OMP_NUM_THREADS"], os.getpid(), flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_workers_on_two_nodes_through_a_kill_of_a_worker_and_of_a_supervisor(cluster, monkeypatch) -> None:
    monkeypatch.setenv("TORCHFT_X_WARM", "1")
    run = cluster(MEETING, workers=4)
    for group in (0, 1):
        met = run.wait_until_met(0, group)
        assert [(m.rank, m.world, m.local, m.node, m.total) for m in met] == [
            (0, 4, 0, 0, 4),
            (1, 4, 1, 0, 4),
            (2, 4, 0, 1, 4),
            (3, 4, 1, 1, 4),
        ]
        assert all(m.threads == max(1, len(os.sched_getaffinity(0)) // 8) for m in met)
    assert re.search(r"^\[rank 3\] met 1 0 3 4 1 1 ", run.text("1.1"), re.MULTILINE)
    warm = lambda: {e["node"] for e in read_events(run.folder) if (e["event"], e.get("group")) == ("warm", "1")}  # noqa: E731
    run.wait_for(lambda: warm() == {0, 1}, 60.0, "the warm parents of both nodes")
    os.kill(run.met(0, 1)[3].pid, signal.SIGKILL)
    again = run.wait_until_met(1, 1)
    assert len(again) == 4
    starts = [e for e in read_events(run.folder) if (e["event"], e.get("group")) == ("start", "1")]
    assert [e["warm"] for e in starts] == [False, False, True, True], starts
    assert not any(process_tree.is_alive(m.pid) for m in run.met(0, 1))
    assert run.met(1, 0) == []
    assert all(process_tree.is_alive(m.pid) for m in run.met(0, 0))
    assert "group 1 died: node 1: worker 3 killed by SIGKILL" in run.text("1.0")
    assert "Traceback" not in run.everything()
    run.processes["1.0"].kill()  # the node that hosts the store
    run.wait_for(lambda: not any(process_tree.is_alive(m.pid) for m in again), 20.0, "the end of group 1")
    run.end.touch()
    codes = run.codes()
    assert (codes["lighthouse"], codes["0.0"], codes["0.1"], codes["1.1"]) == (1, 0, 0, 1), run.everything()
    assert "group 1 is lost: its supervisor of node 0 on" in run.text("lighthouse").lower()


def test_a_lone_node_says_for_what_it_waits(tmp_path: Path) -> None:
    run = Cluster(tmp_path, SLEEPER, groups=1)
    try:
        run.supervise(0, 0)
        run.wait_for(lambda: "node 0 of group 0 waits until all 2 nodes are ready" in run.text("0.0"), 20.0, "the word")
        run.wait_for(lambda: "Group 0 waits for node 1 to come." in run.text("lighthouse"), 20.0, "the reason")
        run.supervise(0, 1)
        sleeping(run, 1, (0,))
    finally:
        run.close()
