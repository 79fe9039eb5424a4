"""docs/examples/slurm: batch scripts as bash and Slurm read them. Stand-ins for srun and scontrol write down what they are told."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from torchft_x.__main__ import main
from torchft_x.launch.supervisor.config import SupervisorConfig

SCRIPTS = Path(__file__).parents[3] / "docs/examples/slurm"
TRAIN = ["train.py", "--steps", "1000", "--name", "a b"]


def words(script: str, folder: Path, **variables: str) -> list[str]:
    """What srun is told by the batch script, without srun's own options."""
    for name, body in {"srun": "printf '%s\\n' \"$@\"", "scontrol": "echo n1; echo n2"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]", "WORKERS": "8", **variables}
    done = subprocess.run(
        ["bash", "-eu", str(SCRIPTS / script), *TRAIN], env=environ, capture_output=True, text=True, check=True
    )
    *_, first = done.stdout.partition("--kill-on-bad-exit=1\n")
    return first.splitlines()


def test_an_array_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2", "RUN": str(tmp_path / "run")}
    program, *rest = words("replicas.sh", tmp_path, **task)
    seen: list[SupervisorConfig] = []
    run = {"run": lambda self: 0, "__init__": lambda self, config, connect, warm: seen.append(config)}
    monkeypatch.setattr("torchft_x.launch.supervisor.group.Supervisor", type("Recorded", (), run))
    assert program == "torchft_x"
    assert main(rest) == 0
    (config,) = seen
    assert (config.group, config.groups, config.workers, config.run_dir) == ("1", 2, 8, tmp_path / "run")
    assert list(config.command) == TRAIN


def test_the_classic_job_beside_it(tmp_path: Path) -> None:
    program, *rest = words("classic.sh", tmp_path, SLURM_NNODES="2", SLURM_JOB_ID="7")
    args = parse_args(rest)
    assert program == "torchrun"
    assert (args.nnodes, args.nproc_per_node, args.rdzv_endpoint, args.rdzv_id) == ("2", "8", "n1:29500", "7")
    assert [args.training_script, *args.training_script_args] == TRAIN


@pytest.mark.parametrize("script", ["replicas.sh", "classic.sh"])
def test_what_slurm_reads_stands_above_the_first_command(script: str) -> None:
    """sbatch stops to read at the first line that is no comment."""
    lines = (SCRIPTS / script).read_text().splitlines()
    head = lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))]
    assert lines[0] == "#!/bin/bash"
    assert sum(line.startswith("#SBATCH ") for line in lines) == sum(line.startswith("#SBATCH ") for line in head) > 0
    for line in head:
        assert not line.startswith("#SBATCH") or re.fullmatch(r"#SBATCH( --[a-z-]+(=[\w%.-]+)?)+", line)
