"""Train on a cluster of two nodes with real kubelets, kill a pod, a container and a node, and say what each cost.

    python -m tests.extended.kubernetes.full

The job is submitted as a person does it: `torchx run -s kubernetes_ft`. At the end every group's parameters are compared
as they were at every committed step. Exit code 0 only if all groups came back each time, no committed step was lost and
the comparison holds. Needs root, and `./scripts/kubernetes --node`; takes some three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.extended.kubernetes.cluster import cluster
from tests.extended.kubernetes.faults.cost import table
from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.run import NODE_GRACE, Trial
from tests.extended.kubernetes.full.node import FullCluster, missing
from tests.extended.kubernetes.shell import TOLERATION, Shell
from tests.extended.kubernetes.space import Space
from tests.util import scaled

_OVERLAY = """
containers:
- {name: lighthouse, imagePullPolicy: Never, resources: {requests: {cpu: 100m}}}
- {name: trainer, imagePullPolicy: Never, resources: {requests: {cpu: 100m}}}
"""  # a node that is left has room for all


@contextlib.contextmanager
def _place(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="kubernetes-full-") as folder:
        yield Path(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder for everything, whose cluster/log is left there")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with _place(args.keep) as folder:
        began = time.monotonic()
        with cluster(folder / "cluster", nodes=2, node_grace=NODE_GRACE, kind=FullCluster) as made:
            print(f"two nodes ready after {time.monotonic() - began:.1f} s", flush=True)
            print(made.kubectl("get", "nodes", "-o", "wide"), flush=True)
            shell = Shell(Space(made), folder)
            shell.overlay.write_text(_OVERLAY)
            shell.memory = 1500  # a real kubelet counts it
            trial = Trial(TrainingJob(shell, folder / "run"))
            try:
                trial.job.begin()
                print(f"both groups train after {time.monotonic() - began:.1f} s", flush=True)
                print(made.kubectl("get", "pods", "-n", trial.space.name, "-o", "wide"), flush=True)
                for _ in range(args.rounds):
                    trial.kill_pod("1")
                    trial.kill_container("1")
                    trial.lose_node()
                findings = trial.job.finish()
            except BaseException:
                print(made.kubectl("get", "pods,jobs,nodes", "-A", "-o", "wide"), flush=True)
                print(made.kubectl("get", "events", "-n", trial.space.name)[-6000:], flush=True)
                raise
    print(f"\n{table(trial.rows)}")
    if args.out:
        settings = {"node_grace": scaled(NODE_GRACE), "toleration": TOLERATION, "nodes": 2, "groups": 2}
        args.out.write_text(
            json.dumps({"settings": settings, "rows": trial.rows, "findings": findings}, indent=1) + "\n"
        )
    return 1 if findings or any(row["undone"] for row in trial.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
