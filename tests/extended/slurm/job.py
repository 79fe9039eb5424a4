"""A job whose parts are Slurm jobs of their own, submitted to a cluster of tests by what slurm_ft is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.extended.slurm.cluster import SlurmCluster
from tests.journeys.jobs import ROOT, Events
from tests.util import wait_for
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.build import build
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.launch import launch
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.observe.report import training_together

APP = "ddp-test"


class SlurmFtJob:
    """Slurm's commands must find the cluster by the environment (`on`)."""

    def __init__(self, cluster: SlurmCluster, folder: Path, groups: int) -> None:
        self.cluster = cluster
        self.run_dir = folder / "run"
        self.groups = groups
        self.controller = Controller()
        self.events = Events(self.run_dir)

    def submit(
        self, script_args: Sequence[str], *, retries: int = 10, nodes: int = 1, cfg: Mapping[str, str] | None = None
    ) -> None:
        """`nodes` of each group, with a worker on each. `cfg`: as slurm_ft takes it."""
        app = ft_app(
            str(ROOT / "scripts/train_ddp.py"), script_args, replicas=self.groups, workers_per_replica=nodes,
            nodes_per_replica=nodes, max_restarts=retries, run_dir=str(self.run_dir), cpu=1, memMB=1000,
            env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        where = {"app_id": APP, "session": "test", "run_dir": str(self.run_dir)}
        launch(build(app, {"exclusive": True, **(cfg or {})}, **where), self.controller)

    # --- what is seen --------------------------------------------------------------------------------------------------

    def rows(self) -> dict[str, Row]:
        """The newest of each part, by its name."""
        by_job = {row.job: row for row in self.controller.rows(app=APP)}
        return {p.name: by_job[p.job] for p in store.read(self.run_dir).parts if p.job in by_job}

    def node(self, part: str) -> str:
        return self.rows()[part].nodes[0]

    def output(self) -> str:
        files = sorted((store.folder(self.run_dir) / "logs").glob("*"))
        return "".join(f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        try:
            wait_for(condition, seconds, what)
        except AssertionError as e:
            rows = [f"{name} {row.job} {row.state} {row.reason} {row.nodes}" for name, row in self.rows().items()]
            raise AssertionError(f"{e};\n" + "\n".join(rows) + f"\n{self.output()}") from None

    def wait_until_training(self, groups: int, seconds: float = 90) -> None:
        self.wait_for(lambda: training_together(self.events(), groups), seconds, f"{groups} groups train together")

    def over(self) -> bool:
        """Every part's job has ended."""
        return all(part_status(row).state not in ("PENDING", "RUNNING") for row in self.rows().values())


def on(cluster: SlurmCluster) -> None:
    """This process' Slurm commands speak to it."""
    os.environ.update(cluster.environ)
