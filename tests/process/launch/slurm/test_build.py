"""From an app and -cfg to batch scripts: what is asked of Slurm, what arrives at a process, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.slurm.made import SCRIPT, directives, how, request
from torchft_x.launch.slurm.build import arrays
from torchft_x.launch.slurm.script import REPLICA, render, submission


def run(text: str, folder: Path, srun: str, number: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as task `number` of job 4, with this script in srun's place."""
    stub = folder / "srun"
    stub.write_text(f"#!/bin/bash\n{srun}\n")
    stub.chmod(0o755)
    given = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_NODELIST": "n1"}
    given |= {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run(["bash"], input=text, env=given, capture_output=True, text=True, timeout=60, check=False)


def test_identical_groups_are_one_array_behind_the_lighthouse() -> None:
    found = request()
    assert [(role.how.role, arrays(role)) for role in found.roles] == [("lighthouse", [[0]]), ("trainer", [[0, 1, 2]])]
    shown = str(found)
    assert subprocess.run(["bash", "-n"], input=shown, text=True, check=False).returncode == 0
    assert "--array=0-2" in directives(shown)
    assert "--dependency=after:LIGHTHOUSE" in directives(shown)
    assert found.token_file == "/shared/run/token"
    assert "requeue" in shown


def test_words_and_values_arrive_as_they_are(tmp_path: Path) -> None:
    """The script itself is run, with an srun that starts what it is given."""
    values = {
        "COMMA": "0,1",
        "NEWLINES": "one\ntwo\n",
        "QUOTES": 'it\'s "q" `x`',
        "DOLLAR": "$HOME $(id) \\",
        "EMPTY": "",
    }
    values |= {"HERE": "TORCHFT_X_TASKS", "MIXED": f"a {REPLICA} $b"}
    (tmp_path / "run/slurm/logs").mkdir(parents=True)
    write = "import json,os,sys; json.dump([dict(os.environ), sys.argv[2:]], open(sys.argv[1], 'w'))"
    words = [*values.values(), REPLICA]
    command = (sys.executable, "-c", write, str(tmp_path / "out.json"), *words)
    text = render(how(command=command, env=values, run_dir=str(tmp_path / "run"), nodes=2, folder=str(tmp_path)))
    made = submission(text, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[3])
    done = run(made, tmp_path, 'while [ "$1" != bash ]; do shift; done\nSLURM_PROCID=1 exec "$@"', 3)
    assert done.returncode == 0, done.stdout + done.stderr
    environ, argv = json.loads((tmp_path / "out.json").read_text())
    expected = {name: value.replace(REPLICA, "7") for name, value in values.items()}
    assert {name: environ.get(name) for name in values} == expected
    assert argv == [*expected.values(), "7"]  # the second node of group 3


@pytest.mark.parametrize(("cancelled", "said"), [(True, {"code": 143, "reason": "it was cancelled"}), (False, None)])
def test_a_lighthouse_that_is_told_to_end_says_so_only_if_the_job_was_cancelled(
    tmp_path: Path, cancelled: bool, said: dict[str, Any] | None
) -> None:
    """It might be queued again. The script itself is run, and is told by a signal, as Slurm does."""
    run_dir = tmp_path / "run"
    (run_dir / "slurm/logs").mkdir(parents=True)
    (run_dir / "slurm/manifest.json").write_text(json.dumps({"cancelled": cancelled}, indent=1))
    one = how(role="lighthouse", kind="lighthouse", run_dir=str(run_dir), folder=str(tmp_path), python=sys.executable)
    made = submission(render(one), app="a", role="lighthouse", ticket="t", run_dir=str(run_dir), numbers=[7])
    done = run(made, tmp_path, "kill -TERM $PPID; sleep 0.2; exit 143", 7, PYTHONPATH=str(SCRIPT.parents[1]))
    assert done.returncode == 143, done.stdout + done.stderr
    written = [json.loads(line) for f in run_dir.glob("events/lighthouse-*") for line in f.read_text().splitlines()]
    assert [{"code": e["code"], "reason": e["reason"]} for e in written if e["event"] == "exit"] == [said][
        : said is not None
    ]


def test_a_run_directory_that_the_node_does_not_see_is_said(tmp_path: Path) -> None:
    text = render(how(run_dir=str(tmp_path / "elsewhere"), folder=str(tmp_path)))
    done = run(text, tmp_path, "exit 1", 0)
    assert done.returncode == 2
    assert "must lie on a file system that all nodes share" in done.stderr
