"""The last sentence of `torchx run`: pure, and by TorchX's real command on both lines."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.started import ROOT, environment
from tests.unit.launch.kubernetes.answering import answering
from tests.unit.launch.lines import BOTH, interpreter, torchx
from tests.util import scaled, wait_for

ANYWHERE = f"{ROOT}/components.py:ddp"


@pytest.mark.parametrize("line", BOTH)
def test_outside_of_the_clone_the_default_scheduler_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    missing = f"unix://{tmp_path}/docker.sock"
    done = torchx(
        "run", ANYWHERE, "--script", "train.py", cwd=tmp_path, line=line, HOME=str(tmp_path), DOCKER_HOST=missing
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "so TorchX took local_docker, and Docker can't be used" in last
    assert "torchx run -s local_cwd" in last


@pytest.mark.parametrize("app", ["local_ft://s/none", "slurm_ft://s/none", "kubernetes_ft://s/team:none"])
def test_the_log_of_an_unknown_job_is_one_sentence_and_2(app: str, tmp_path: Path) -> None:
    """S11: TorchX reads each replica on a thread of its own, whose traceback was shown, and ended with 0."""
    with answering(lambda _: (200, {"items": []}), tmp_path / "kubeconfig"):
        nothing = {"HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/kubeconfig"}
        done = torchx("log", f"{app}/trainer/0,1", cwd=tmp_path, **nothing)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert re.match("torchft_x: .* no job (team:)?none |torchft_x: nothing is known of the job none", sentence)


@pytest.mark.parametrize("line", BOTH)
def test_a_missing_sbatch_and_a_missing_kubeconfig(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "bin").mkdir()
    nothing = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/none"}
    slurm = torchx("run", "-s", "slurm", ANYWHERE, "--script", "train.py", cwd=tmp_path, line=line, **nothing)
    assert slurm.returncode == 2
    assert "Slurm's sbatch is not on this machine's PATH" in slurm.stderr.splitlines()[-1]
    words = ["-s", "kubernetes", "-cfg", "queue=default", "--workspace="]
    kubernetes = torchx("run", *words, ANYWHERE, "--image", "x:1", cwd=tmp_path, line=line, **nothing)
    assert kubernetes.returncode == 2
    assert f"{tmp_path}/none does not exist" in kubernetes.stderr.splitlines()[-1]
    assert "Traceback" not in slurm.stderr + kubernetes.stderr


@pytest.mark.parametrize(("line", "code"), [("this", 2), ("nightly", 1)])
def test_an_unknown_option_of_the_scheduler_is_refused(line: str, code: int, tmp_path: Path) -> None:
    """0.7.0 forgets it, so we look; nightly refuses it before the component is called, with its own traceback."""
    (tmp_path / "train.py").write_text("")
    words = ["-s", "slurm", "-cfg", "partion=gpu", "--dryrun", ANYWHERE, "--script", "train.py"]
    done = torchx("run", *words, cwd=tmp_path, line=line)
    assert done.returncode == code
    assert "partion" in done.stderr.splitlines()[-1]
    assert "partition" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("line", BOTH)
def test_ctrl_c_is_a_sentence(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nopen('began', 'w')\ntime.sleep(600)\n")
    torchx_run = [str(Path(interpreter(line)).with_name("torchx")), "run", "-s", "local_cwd", ANYWHERE]
    process = subprocess.Popen(
        [*torchx_run, "--script", "train.py"], cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait_for(lambda: (tmp_path / "began").exists(), 60, "the script")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=scaled(30))
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "torchft_x: stopped by Ctrl-C; a job on this machine has ended with it." in err.splitlines()


def test_debug_keeps_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    nothing = {"PATH": str(tmp_path), "HOME": str(tmp_path), "TORCHFT_X_LOG_LEVEL": "debug"}
    done = torchx("run", "-s", "slurm", ANYWHERE, "--script", "train.py", cwd=tmp_path, **nothing)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
