"""Groups over several nodes as real processes: a lighthouse, a supervisor per node, toy scripts. All on this host."""

from __future__ import annotations

from pathlib import Path

from tests.process.launch.supervisor.test_coordination import (
    SLEEPER,
    Cluster,
    cluster,  # noqa: F401
    sleeping,
)


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
