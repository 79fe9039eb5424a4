"""A job of local_ft on both TorchX lines, installed from a wheel: what the commands say of it from another shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.extended.matrix.installs import Installation, Workshop
from tests.unit.launch.lines import BOTH
from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.job.states import UnreadableError
from torchft_x.launch.keeper import record
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(600)]

SCRIPT = """\
import os, time
print("group", os.environ["REPLICA_GROUP_ID"], "is here", flush=True)
time.sleep(3600)
"""


def say(install: Installation, *words: str) -> str:
    done = install.torchx(*words)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "Traceback" not in text, text
    return text


def is_here(run_dir: Path, group: int) -> bool:
    try:
        log = Path(record.read(run_dir).log_dir, "trainer", str(group), "combined.log")
    except UnreadableError:
        return False
    return log.exists() and "is here" in log.read_text()


def supervisor(run_dir: Path, group: int) -> int:
    """Return the process id of a group's supervisor, or 0."""
    (trainer,) = (role for role in record.read(run_dir).roles if role.name == "trainer")
    process = next(replica for replica in trainer.replicas if replica.id == group).process
    return 0 if process is None else process.pid


@pytest.mark.parametrize("line", BOTH)
def test_from_another_shell(line: str, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install, run_dir, script = workshop.installation(line, "wheel"), tmp_path / "run", tmp_path / "job.py"
    monkeypatch.setenv(env.STATE_HOME, str(tmp_path / "state"))
    script.write_text(SCRIPT)
    try:
        job = ("ft.ddp", "--script", str(script), "--run_dir", str(run_dir))
        out = say(install, "run", "-s", "local_ft", "-cfg", "detach=True", *job)
        found = re.search(r"local_ft://torchx/(\S+)$", out, re.MULTILINE)
        assert found is not None, out
        handle = found[0]
        assert "the job runs by itself" in out
        wait_for(lambda: is_here(run_dir, 0) and is_here(run_dir, 1), 60, "the groups")
        os.kill(supervisor(run_dir, 1), signal.SIGKILL)
        again = lambda: record.read(run_dir).restarts == 1 and supervisor(run_dir, 1)  # noqa: E731
        wait_for(again, 30, "the supervisor, again")

        assert re.search(rf"{handle}\s.*RUNNING", say(install, "list", "-s", "local_ft"))
        status = say(install, "status", handle)
        assert re.search(r"State: RUNNING\s+Num Restarts: 1\s", status), status
        assert re.search(r"\*lighthouse\[0\]:\s*RUNNING", status), status
        assert re.search(r"\*trainer\[0\]:\s*RUNNING\s", status), status
        one = status.split("trainer[1]:")[1]
        assert "RUNNING" in one, status
        assert "restarts: 1 (1 of its supervisor), last: killed by SIGKILL" in one, status
        assert record.read(run_dir).host in one, status
        described = say(install, "describe", handle)
        assert "'name': 'trainer'" in described
        assert "'num_replicas': 2" in described
        log = attached(install, handle)
        assert re.search(r"trainer/0\S* group 0 is here", log), log
        assert re.search(r"trainer/1\S* torchft_x: the supervisor of group 1 was killed by SIGKILL", log), log
        say(install, "cancel", handle)
        wait_for(lambda: not job_processes(run_dir), 30, f"the end of {job_processes(run_dir)}")
        assert "State: CANCELLED" in say(install, "status", handle)
        assert re.search(rf"{handle}\s.*CANCELLED", say(install, "list", "-s", "local_ft"))
        assert "is here" in say(install, "log", handle)
    finally:
        process_tree.send(job_processes(run_dir), signal.SIGKILL)


def attached(install: Installation, handle: str) -> str:
    """Return what `torchx log` shows until the line of the kill is among it."""
    log = subprocess.Popen(
        install.command("log", "--tail", handle), cwd=install.folder, env=install.environ(),
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    text = ""
    try:
        assert log.stdout is not None
        for line in log.stdout:
            text += line
            if "group 0 is here" in text and "was killed by SIGKILL" in text:
                break
    finally:
        log.kill()
        log.communicate()
    return text
