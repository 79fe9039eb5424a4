"""A job whose parts are Slurm jobs of their own, submitted to a cluster of tests by what slurm_ft is made of; without TorchX."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.extended.slurm.cluster import SlurmCluster
from tests.journeys.jobs import ROOT, Events
from tests.util import wait_for
from torchft_x import env
from torchft_x.core.slurm.manifest import Manifest, Part
from torchft_x.core.slurm.queue import Row
from torchft_x.core.slurm.state import told
from torchft_x.launch.slurm import options, store
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.script import REPLICA, RoleScript, render
from torchft_x.launch.slurm.submit import submit_parts
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
        self,
        script_args: Sequence[str],
        *,
        retries: int = 10,
        nodes: int = 1,
        cfg: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        """`cfg`: as slurm_ft takes it. `more`: variables of the trainers."""
        folder = store.folder(self.run_dir)
        common = {
            env.RUN_DIR: str(self.run_dir),
            env.LIGHTHOUSE_PORT: "29510",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        numbers = ",".join(map(str, range(self.groups)))
        jobs = f"--min_replicas 1 --job_groups {numbers} --job_min_replicas 1".split()
        kept = ["--run_dir", str(self.run_dir), "--groups_file", str(folder / "groups.json")]
        kept += ["--lease_dir", str(store.lease_folder(self.run_dir))]
        lighthouse = [sys.executable, "-m", "torchft_x", "lighthouse", *jobs, *kept]
        which = ["--group", REPLICA] if nodes == 1 else ["--replica", REPLICA, "--nodes", str(nodes)]
        sizes = ["--groups", str(self.groups), "--workers", str(nodes), "--max_restarts", "10"]
        trainer = [sys.executable, "-m", "torchft_x", "supervise", *which, *sizes, "--run_dir", str(self.run_dir), "--"]
        trainer += [str(ROOT / "scripts/train_ddp.py"), *script_args]
        roles = [
            self._role("lighthouse", lighthouse, common, 1, cfg or {}),
            self._role("trainer", trainer, {**common, env.GIVE_UP_CODE: "1", **more}, nodes, cfg or {}),
        ]
        parts = [self._part("lighthouse", 0, 1), *(self._part("trainer", n, nodes) for n in range(self.groups))]
        manifest = Manifest(
            app=APP,
            session="test",
            run_dir=str(self.run_dir),
            token_file=str(self.run_dir / "token"),
            log_dir=str(folder / "logs"),
            created=time.time(),
            retries=retries,
            parts=tuple(parts),
        )
        store.create(manifest)
        store.lease_folder(self.run_dir).mkdir(exist_ok=True)
        for role in roles:
            (folder / f"{role.role}.sh").write_text(render(role))
        store.tell_groups(manifest)
        manifest = submit_parts(self.controller, manifest, parts[:1])
        submit_parts(self.controller, manifest, parts[1:], after=manifest.jobs[:1])

    def _role(
        self, kind: str, command: list[str], environ: dict[str, str], nodes: int, cfg: Mapping[str, str]
    ) -> RoleScript:
        return RoleScript(
            role=kind,
            kind=kind,
            command=tuple(command),
            env=environ,
            run_dir=str(self.run_dir),
            log_dir=str(store.folder(self.run_dir) / "logs"),
            folder=str(self.run_dir),
            nodes=nodes,
            cpus=1,
            memory=1000,
            options=("--exclusive", *options.words(cfg, kind).sbatch),
            python=sys.executable,
        )

    def _part(self, kind: str, number: int, nodes: int) -> Part:
        script = str(store.folder(self.run_dir) / f"{kind}.sh")
        return Part(role=kind, kind=kind, number=number, script=script, nodes=nodes)

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
        return all(told(row).state not in ("PENDING", "RUNNING") for row in self.rows().values())


def on(cluster: SlurmCluster) -> None:
    """This process' Slurm commands speak to it."""
    os.environ.update(cluster.environ)
