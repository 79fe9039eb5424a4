"""From an app and -cfg to batch scripts: what is asked of Slurm, what arrives at a process, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.launch.slurm.made import directives, request, spec
from torchft_x.launch.slurm import script
from torchft_x.launch.slurm.script import FENCE, REPLICA, render, submission


def run(text: str, folder: Path, srun: str, number: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as task `number` of job 4, with this script instead of srun."""
    stub = folder / "srun"
    stub.write_text(f"#!/bin/bash\n{srun}\n")
    stub.chmod(0o755)
    given = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_NODELIST": "n1"}
    given |= {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run(["bash"], input=text, env=given, capture_output=True, text=True, timeout=60, check=False)


def test_identical_groups_are_one_array_which_brings_the_lighthouse_along() -> None:
    found = request()
    assert [(role.spec.role, role.arrays) for role in found.roles] == [("trainer", ([0, 1, 2],))]
    shown = str(found)
    assert subprocess.run(["bash", "-n"], input=shown, text=True, check=False).returncode == 0
    assert "--array=0-2" in directives(shown)
    assert not any(line.startswith("--dependency") for line in directives(shown))
    assert found.manifest.token_file == "/shared/run/token"
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
    words = [*values.values(), REPLICA, FENCE]
    command = (sys.executable, "-c", write, str(tmp_path / "out.json"), *words)
    text = render(spec(command=command, env=values, run_dir=str(tmp_path / "run"), nodes=2, folder=str(tmp_path)))
    made = submission(text, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[3])
    done = run(made, tmp_path, 'while [ "$1" != bash ]; do shift; done\nSLURM_PROCID=1 exec "$@"', 3)
    assert done.returncode == 0, done.stdout + done.stderr
    environ, argv = json.loads((tmp_path / "out.json").read_text())
    expected = {name: value.replace(REPLICA, "7") for name, value in values.items()}
    assert {name: environ.get(name) for name in values} == expected
    fence = [f"{tmp_path}/run/slurm/newest-trainer-3", "4_3-r0"]
    assert argv == [*expected.values(), "7", *fence]  # the second node of group 3
    assert Path(fence[0]).read_text() == f"{fence[1]}\n"


LIGHTHOUSE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(os.environ["NAME"], *sys.argv[1:], flush=True)
time.sleep({seconds})
"""


@pytest.mark.parametrize(
    ("number", "seconds", "code", "ended"),
    [
        (0, 0.5, 0, True),  # the lighthouse ends by itself: it has a verdict, perhaps
        (0, 600.0, 1, True),  # its group has given up, and it is told to end
        (3, 0.5, 0, True),
        (4, 0.5, 0, False),  # the first four groups have one
    ],
)
def test_a_lighthouse_runs_and_ends_with_its_group(
    number: int, seconds: float, code: int, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_LAST_WORDS", 3)
    logs, part_status = tmp_path / "run/slurm/logs", tmp_path / "told"
    logs.mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n[ "$3" != slurm-end ] || echo "$5" >> {part_status}\n')
    python.chmod(0o755)
    one = spec(
        kind="trainer", run_dir=str(tmp_path / "run"), folder=str(tmp_path), python=str(python),
        lighthouse=(sys.executable, "-c", LIGHTHOUSE.format(seconds=seconds)), lighthouse_env={"NAME": "it's $x"},
    )  # fmt: skip
    made = submission(render(one), app="a", role="trainer", ticket="t", run_dir="/r", numbers=[number])
    done = run(made, tmp_path, f"sleep 0.2; exit {code}", number, SLURM_RESTART_COUNT="2")
    assert done.returncode == code, done.stdout + done.stderr
    assert [path.name for path in logs.glob("lighthouse-*")] == [f"lighthouse-{number}-0.4_{number}-r2.log"] * ended
    assert (part_status.read_text().split() if part_status.exists() else []) == [f"4_{number}"] * ended
    if ended:
        assert (logs / f"lighthouse-{number}-0.4_{number}-r2.log").read_text() == "it's $x --attempt 2\n"


def test_a_first_process_that_was_killed_is_started_again_in_place(tmp_path: Path) -> None:
    """Nobody else may be there to do it. Whoever was told to end (143) stays ended."""
    (tmp_path / "run/slurm/logs").mkdir(parents=True)
    text = render(spec(run_dir=str(tmp_path / "run"), folder=str(tmp_path)))
    for codes, last in (("137 137 0", 0), ("143", 143), ("137 137 137 137", 137)):
        (tmp_path / "codes").write_text("\n".join(codes.split()) + "\n")
        pop = f"cd {tmp_path}; read code < codes; sed -i 1d codes; exit $code"
        done = run(text, tmp_path, pop, 0)
        assert (done.returncode, (tmp_path / "codes").read_text()) == (last, ""), done.stdout + done.stderr


def test_a_run_directory_that_the_node_does_not_see_is_said(tmp_path: Path) -> None:
    text = render(spec(run_dir=str(tmp_path / "elsewhere"), folder=str(tmp_path)))
    done = run(text, tmp_path, "exit 1", 0)
    assert done.returncode == 2
    assert "must lie on a file system that all nodes share" in done.stderr


@pytest.mark.parametrize(("number", "again", "at_once"), [(0, False, True), (0, True, False), (1, False, False)])
def test_the_first_watcher_of_a_job_starts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, again: bool, at_once: bool
) -> None:
    """It came after 10 s, and until then `torchx status` called all groups PENDING. Those of restarts wait."""
    monkeypatch.setattr(script, "_WATCHER_STARTS", 3600)
    (tmp_path / "run/slurm/logs").mkdir(parents=True)
    if again:
        (tmp_path / "run/slurm/watcher.json").touch()
    python, watched = tmp_path / "python", tmp_path / "watched"
    python.write_text(f'#!/bin/sh\n[ "$3" = slurm-watch ] && touch {watched}\n')
    python.chmod(0o755)
    text = render(spec(kind="trainer", run_dir=str(tmp_path / "run"), folder=str(tmp_path), python=str(python)))
    srun = f"until [ -e {watched} ]; do sleep 0.05; done" if at_once else ":"
    assert run(text, tmp_path, srun, number).returncode == 0
    assert watched.exists() is at_once
