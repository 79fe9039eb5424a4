"""The processes of a job as pods have them: nothing shared but the network, the token and the lighthouse's host."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, Job, running
from tests.util import free_port
from torchft_x import env
from torchft_x.observe.report import commits

pytestmark = [pytest.mark.timeout(300)]

STEPS = 120
TOKEN = "as-made-for-this-request"


class Pods:
    """Starts roles with the variables that schedulers/kubernetes.py sets, each in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def start(self, name: str, *words: str, **variables: str) -> AbstractContextManager[Job]:
        run_dir = self.folder / name
        run_dir.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "torchft_x", *words[:1], "--run_dir", str(run_dir), *words[1:]]
        common = {
            "TORCHX_JOB_ID": "kubernetes://torchx/job",
            env.RUN_DIR: str(run_dir),
            env.TOKEN: TOKEN,
            env.ADVERTISE_HOST: "127.0.0.1",
            env.LIGHTHOUSE_PORT: str(self.port),
        }
        return running(command, self.folder / f"{name}.log", run_dir, **common, **variables)

    def lighthouse(self) -> AbstractContextManager[Job]:
        words = ("lighthouse", "--min_replicas", "2", "--job_groups", "0,1", "--job_min_replicas", "2")
        return self.start("lighthouse", *words, **{env.REPLACED_WITHIN: "600"})

    def group(self, group: str) -> AbstractContextManager[Job]:
        script = ["scripts/train_ddp.py", "--steps", str(STEPS), "--pace", "0.02", "--min-groups", "2", *SMALL]
        words = ["supervise", "--group", group, "--groups", "2", "--", *script]
        named = {env.LIGHTHOUSE_HOST_IN: "VC_LIGHTHOUSE_0_HOSTS", "VC_LIGHTHOUSE_0_HOSTS": "127.0.0.1"}
        return self.start(f"group-{group}", *words, **named, **{env.GIVE_UP_CODE: "0"})


def newest_step(job: Job) -> int:
    return max((c["step"] for c in commits(job.events())), default=0)


def test_groups_that_share_nothing_train_and_one_comes_back(tmp_path: Path) -> None:
    """Once its container is killed, and once its pod is deleted. The lighthouse would fence lives that begin to count anew."""
    pods = Pods(tmp_path)
    with pods.group("0") as zero:  # before there is a lighthouse
        with pods.lighthouse() as lighthouse:
            for step, number in ((5, signal.SIGKILL), (20, signal.SIGTERM)):
                with pods.group("1") as one:
                    one.wait_for(lambda: newest_step(one) >= step, 90, "both groups train")  # noqa: B023
                    one.process.send_signal(number)
                    one.wait(20)
                    assert zero.process.poll() is None
            with pods.group("1") as again:
                assert again.wait(120) == 0
                assert zero.wait(60) == 0
            assert lighthouse.wait(30) == 0, lighthouse.output()[-3000:]
        assert newest_step(zero) == newest_step(again) == STEPS - 1  # they are counted from 0
        begun = [e["attempt"] for e in again.events() if e["event"] == "start" and e["role"] == "supervisor"]
        assert begun == [0, 1, 2]
        assert "All 2 groups finished." in lighthouse.output()
        for job in (zero, again, lighthouse):
            assert not (job.run_dir / "token").exists()
            assert TOKEN not in job.output()
    assert not (tmp_path / "group-0" / "lighthouse").exists()
