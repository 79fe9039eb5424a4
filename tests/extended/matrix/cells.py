"""Conditions that each cell of the matrix must meet: one function per scheduler."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.extended.matrix.installs import Installation

GROUPS = 2
JOB = Path(__file__).with_name("job.py")
DILOCO = {"sync_steps": 7, "num_fragments": 1, "fragment_sync_delay": 0}


def options(component: str) -> list[str]:
    """Return the options that set the component apart from the others."""
    return {
        "ddp": ["--env", "A=1,2,B=x"],
        "hsdp": ["--workers_per_replica", "2"],
        "diloco": ["--sync_steps", "7"],
        "lighthouse": ["--min_replicas", "2"],
    }[component]


def run_here(install: Installation, component: str, top: Path) -> None:
    """Run a real job of two groups. Check that each worker was started correctly and could query the lighthouse."""
    out, script, run_dir = top / "out", top / "job.py", top / "run"
    out.mkdir()
    shutil.copy(JOB, script)
    words = ["run", "-s", "local_cwd", install.component(component), "--replicas", str(GROUPS), *options(component)]
    done = install.torchx(*words, "--run_dir", str(run_dir), "--script", str(script), "--", str(out))
    assert done.returncode == 0, _end(done)
    workers = 2 if component == "hsdp" else 1
    seen = {file.stem: json.loads(file.read_text()) for file in out.iterdir()}
    assert sorted(seen) == [f"{g}-{r}" for g in range(GROUPS) for r in range(workers)], _end(done)
    for worker in seen.values():
        assert Path(worker["package"]).parent == install.package
        assert Path(worker["python"]) == install.python
        assert (worker["groups"], worker["world_size"]) == (str(GROUPS), str(workers))
        assert worker["token"]
        assert worker["asked"]
        assert worker["diloco"] == (DILOCO if component == "diloco" else {})
    assert len({worker["lighthouse"] for worker in seen.values()}) == 1
    assert "Traceback" not in done.stdout + done.stderr, _end(done)


def render_slurm(install: Installation, component: str, top: Path) -> None:
    """Check that every role is started by this installation. The script's fields: tests/process/launch/test_slurm.py."""
    script = _request(install, "slurm", component, str(JOB))
    assert script.count("-m torchft_x ") == _roles(component), f"not every role is started:\n{script}"
    assert str(install.python) in script


def render_kubernetes(install: Installation, component: str, top: Path) -> None:
    """Check that every role is started. The pods' fields: tests/process/launch/test_kubernetes.py."""
    if install.run_python("-c", "import kubernetes").returncode != 0:
        pytest.skip(f"pip install kubernetes, into the base environment of TorchX {install.line}")
    job = yaml.safe_load(_request(install, "kubernetes", component, "/job.py", "--image", "registry/image:1"))
    started = [task["template"]["spec"]["containers"][0]["command"][:3] for task in job["spec"]["tasks"]]
    assert started == [["python", "-m", "torchft_x"]] * _roles(component)


def _roles(component: str) -> int:
    return 1 if component == "lighthouse" else 1 + GROUPS


def _request(install: Installation, scheduler: str, component: str, script: str, *words: str) -> str:
    """Return the request that would be submitted, made without a network."""
    command = ["run", "-s", scheduler, "--workspace", "", "--dryrun"]
    if scheduler == "kubernetes":  # the nightly line would let a cluster validate the request
        command += ["-cfg", "queue=default" + ("" if install.line == "this" else ",validate_spec=False")]
    command += [install.component(component), *options(component), *words]
    command += [] if component == "lighthouse" else ["--script", script]
    done = install.torchx(*command, offline=True)
    assert done.returncode == 0, _end(done)
    assert "Traceback" not in done.stderr, _end(done)
    return done.stdout.split("=== SCHEDULER REQUEST ===\n", 1)[1]


def check_listed(install: Installation, clone: Installation) -> None:
    """Check that `torchx builtins` lists TorchX's own components, and ours where they are installed."""
    ours = [] if install.way == "bare clone" else ["ft.ddp", "ft.diloco", "ft.hsdp", "ft.lighthouse", "ft.titan"]
    own = _listed(clone)
    assert "dist.ddp" in own
    assert _listed(install) == sorted([*own, *ours])


def _listed(install: Installation) -> list[str]:
    done = install.torchx("builtins")
    assert done.returncode == 0, _end(done)
    return sorted(re.findall(r"^ *\d+\. (\S+)", done.stdout, re.MULTILINE))


def check_schedulers(install: Installation) -> None:
    """Check that all stock schedulers can be chosen and show their options, and ours where torchft_x is installed."""
    stock = "from torchx.schedulers import DEFAULT_SCHEDULER_MODULES as m; print(*sorted(m))"
    names = install.run_python("-c", stock)
    assert names.returncode == 0, names.stderr
    shown = install.torchx("run", "--help")
    assert shown.returncode == 0, _end(shown)
    choices = re.search(r"\{([\w,\s-]+)\}", shown.stdout.split("--scheduler", 1)[1])
    assert choices is not None, shown.stdout
    ours = [] if install.way == "bare clone" else ["local_ft", "slurm_ft", "kubernetes_ft"]
    assert sorted(re.sub(r"\s", "", choices[1]).split(",")) == sorted([*names.stdout.split(), *ours])
    for name in ("local_cwd", "slurm", *ours):
        options_of = install.torchx("runopts", name)
        assert options_of.returncode == 0, _end(options_of)


def _end(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a program's output, followed by all of it."""
    last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return f"exit code {done.returncode}: {last}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
