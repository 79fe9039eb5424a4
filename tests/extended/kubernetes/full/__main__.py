"""Train on two nodes with real kubelets; kill a pod, a container and a node, freeze a container, and report the costs.

    python -m tests.extended.kubernetes.full

The job is submitted as a person does it: `torchx run -s kubernetes_ft`. At the end the parameters of all groups are
compared at every committed step. The exit code is 0 only if all groups came back each time, no committed step was lost
and the comparison holds. Needs root, and `./scripts/kubernetes --node`. One round takes some five minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.extended.kubernetes.cluster import cluster
from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.run import NODE_GRACE, Trial
from tests.extended.kubernetes.full.node import FullCluster, RealNode, missing
from tests.extended.kubernetes.shell import USER, Shell
from tests.extended.kubernetes.space import Space

_OVERLAY = f"""
securityContext: {{runAsUser: {USER}}}
containers:
- {{name: lighthouse, imagePullPolicy: Never, resources: {{requests: {{cpu: 100m}}}}}}
- {{name: trainer, imagePullPolicy: Never, resources: {{requests: {{cpu: 100m}}}}}}
"""  # small requests, so that the remaining node has room for all pods


class FullTrial(Trial):
    """The faults applied to a job on a `FullCluster`."""

    def freeze_container(self, group: str) -> None:
        """Stop all processes in a group's container. Its liveness probe must find that, and nothing of it may be left."""
        node, uid = self._where(group)
        assert isinstance(node, RealNode)
        frozen: list[int] = []

        def freeze() -> None:
            for pid in node.pids(uid):
                with contextlib.suppress(ProcessLookupError):  # a probe that has just ended
                    os.kill(pid, signal.SIGSTOP)
                    frozen.append(pid)

        self.fault("container frozen", group, freeze)
        left = [pid for pid in frozen if Path(f"/proc/{pid}").exists()]
        assert not left, f"the frozen processes {left} are left"
        print(self.job.shell.say("status", self.job.handle), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder for everything, whose cluster/log is left there")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kubernetes-full-") as name:
        folder, began = args.keep or Path(name), time.monotonic()
        with cluster(folder / "cluster", nodes=2, node_grace=NODE_GRACE, kind=FullCluster) as made:
            print(f"two nodes ready after {time.monotonic() - began:.1f} s", flush=True)
            print(made.kubectl("get", "nodes", "-o", "wide"), flush=True)
            shell = Shell(Space(made), folder)
            shell.overlay.write_text(_OVERLAY)
            shell.memory = 1500  # MB; a real kubelet enforces it
            trial = FullTrial(TrainingJob(shell, folder / "run"))
            with trial.explained():
                trial.job.begin()
                print(f"both groups train after {time.monotonic() - began:.1f} s", flush=True)
                print(made.kubectl("get", "pods", "-n", trial.space.name, "-o", "wide"), flush=True)
                for _ in range(args.rounds):
                    trial.kill_pod("1")
                    trial.kill_container("1")
                    trial.kill_pod("0")  # so that its next container has no back-off
                    trial.freeze_container("0")
                    trial.lose_node()
                findings = trial.job.finish()
    return trial.report(args.out, findings)


if __name__ == "__main__":
    sys.exit(main())
