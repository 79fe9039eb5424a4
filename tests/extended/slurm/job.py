"""Training jobs on a Slurm cluster of the tests, with a user's view of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from tests.events import training_together, workers
from tests.extended.slurm.cluster import SlurmCluster
from tests.journeys.jobs import Events
from tests.started import ROOT
from tests.util import wait_for
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.job.job import FtJob
from torchft_x.launch.process import process_tree
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.build import build
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.submit import launch
from torchft_x.observe.processes import job_processes

APP = "ddp-test"


class SlurmJob:
    """A job whose run directory is in `folder`."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.run_dir = folder / "run"
        self.events = Events(self.run_dir)

    def files(self, name: str = "*") -> list[Path]:
        """Return slurm_ft's output files of the parts whose names match."""
        return sorted((store.folder(self.run_dir) / "logs").glob(name))

    def ends_of_files(self) -> str:
        """Return the last lines of each output file."""
        return "".join(f"--- {f.name}\n" + "".join(f.open(errors="replace").readlines()[-15:]) for f in self.files())

    def output(self, name: str = "*") -> str:
        return "".join(f"--- {f.name}\n{f.read_text(errors='replace')}" for f in self.files(name))

    def worker(self, group: str) -> int:
        """Return the process id of the group's newest worker."""
        return next(w.pid for w in workers(self.events()) if w.group == group)

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        try:
            wait_for(condition, seconds, what)
        except AssertionError as e:
            queue = self.cluster.run("squeue", "-t", "all")
            events = [str(e) for e in self.events() if e.get("event") != "commit"][-40:]
            found = [queue, self.ends_of_files(), *events, self.cluster.processes_and_logs()]
            raise AssertionError("\n".join([f"{e};", *found])) from None

    def wait_until_training(self, groups: int = 2, seconds: float = 90, after: float = 0.0) -> None:
        """Wait until so many groups have committed together, later than `after` (Unix time in seconds)."""

        def together() -> bool:
            return training_together([e for e in self.events() if float(e["t"]) > after], groups)

        self.wait_for(together, seconds, f"{groups} groups train together")

    def kill(self) -> None:
        """Kill the remaining processes of the job on this host."""
        process_tree.send(job_processes(self.run_dir), signal.SIGKILL)


def folder_with_the_same_port(folder: Path) -> Path:
    """Make and return a folder, below `folder`, whose ``run`` gives a job the same port as ``run`` in `folder` does."""
    found = next(one for n in count() if _port(one := folder / str(n)) == _port(folder))
    found.mkdir()
    return found


def _port(folder: Path) -> int:
    return FtJob(script="train.py", run_dir=str(folder / "run")).lighthouse_port


class SlurmFtJob(SlurmJob):
    """A job of slurm_ft, submitted from this process, whose Slurm commands must find the cluster (`on`)."""

    def __init__(self, cluster: SlurmCluster, folder: Path, groups: int) -> None:
        super().__init__(cluster, folder)
        self.groups = groups
        self.controller = Controller()

    def submit(
        self,
        script_args: Sequence[str],
        *,
        retries: int = 10,
        nodes: int = 1,
        health: str = "",
        cfg: Mapping[str, str] | None = None,
    ) -> None:
        """Submit the job. `nodes`: of each group, with a worker on each. `cfg`: as slurm_ft takes it."""
        app = ft_app(
            str(ROOT / "benchmarks/trial/ddp.py"), script_args, replicas=self.groups, workers_per_replica=nodes,
            nodes_per_replica=nodes, max_restarts=retries, run_dir=str(self.run_dir), cpu=1, memMB=1000, health=health,
            env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        where = {"app_id": APP, "run_dir": str(self.run_dir)}
        launch(build(app, {"exclusive": True, **(cfg or {})}, **where), self.controller)

    def rows(self) -> dict[str, Row]:
        """Return the newest row of each part, by the name of the part."""
        by_job = {row.job: row for row in self.controller.rows(app=APP)}
        return {p.name: by_job[p.job] for p in store.read(self.run_dir).parts if p.job in by_job}

    def node(self, part: str) -> str:
        return self.rows()[part].nodes[0]

    def over(self) -> bool:
        """Return whether every part's job has ended."""
        return all(part_status(row).state not in ("PENDING", "RUNNING") for row in self.rows().values())


def on(cluster: SlurmCluster) -> None:
    """Direct the Slurm commands of this process to the cluster."""
    os.environ.update(cluster.environ)
