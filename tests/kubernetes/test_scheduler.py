"""`torchx run -s kubernetes_ft` on a real control plane: it trains, a group's pod is killed and comes back, it is cancelled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import IMAGE, Cluster
from tests.kubernetes.space import Space
from tests.launch.lines import ROOT, environment
from tests.util import scaled, wait_for
from torchft_x.core.kubernetes import rights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_TORCHX = "import sys; from torchft_x.launch.plugin.command import CmdFt; from torchx.cli.main import main; CmdFt(); main(sys.argv[1:])"
_OVERLAY = """
securityContext: {runAsNonRoot: true, runAsUser: 65534}
volumes: [{name: tmp, emptyDir: {}}]
containers:
- name: lighthouse
  imagePullPolicy: Never
  securityContext: {readOnlyRootFilesystem: true}
  volumeMounts: [{name: tmp, mountPath: /tmp}]
- name: trainer
  imagePullPolicy: Never
  securityContext: {readOnlyRootFilesystem: true}
  volumeMounts: [{name: tmp, mountPath: /tmp}]
"""
_MODEL = ["--width", "32", "--layers", "1", "--heads", "2", "--batch-size", "2", "--seq-len", "32", "--data-mb", "0.2"]
_KINDS = ("batch/v1/jobs", "services", "secrets", "networking.k8s.io/v1/networkpolicies", "pods")


class Shell:
    """Commands of TorchX, as somebody of the cluster."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space = space
        self.overlay = folder / "overlay.yaml"
        self.overlay.write_text(_OVERLAY)
        self.kubeconfig = self.here(space.cluster.kubeconfig)

    def here(self, kubeconfig: Path) -> Path:
        """With the namespace in its context, as a person's is."""
        found = json.loads(kubeconfig.read_text())
        found["contexts"][0]["context"]["namespace"] = self.space.name
        path = self.overlay.with_name(kubeconfig.name)
        path.write_text(json.dumps(found))
        return path

    def become_guest(self) -> None:
        """Who may nothing."""
        self.kubeconfig = self.here(self.space.cluster.kubeconfig_of("guest", ""))

    def allow_guest(self, rules: int = 99) -> None:
        """What docs/kubernetes.md says is enough, or the first rules of it."""
        group = "rbac.authorization.k8s.io"
        role = rights.role()
        self.space.cluster.api.post(self.space.at(f"{group}/v1/roles"), {**role, "rules": role["rules"][:rules]})
        guest = {"kind": "User", "name": "guest", "apiGroup": group}
        ref = {"kind": "Role", "name": "torchft-x", "apiGroup": group}
        binding = {"metadata": {"name": "guest"}, "subjects": [guest], "roleRef": ref}
        self.space.cluster.api.post(self.space.at(f"{group}/v1/rolebindings"), binding)

    def say(self, *words: str, code: int = 0) -> str:
        done = self.start(*words)
        out, err = done.communicate(timeout=scaled(60))
        assert done.returncode == code, f"torchx {' '.join(words)}: {out}{err}"
        return out + err

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = {**environment(), "KUBECONFIG": str(self.kubeconfig), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen([sys.executable, "-c", _TORCHX, *words], cwd=ROOT, env=variables, **pipe)

    @contextmanager
    def following(self, part: str) -> Iterator[subprocess.Popen[str]]:
        with self.start("log", "-t", part) as log:
            try:
                yield log
            finally:
                log.kill()

    def run(self, *words: str, code: int = 0, wait: bool = False) -> str:
        options = f"overlay={self.overlay},grace=15,toleration=1"
        flags = ["-s", "kubernetes_ft", "--workspace=", "-cfg", options, *(["--wait"] if wait else [])]
        component = ["./components.py:ddp", "--image", IMAGE, "--cpu", "1", "--memMB", "1000"]
        return self.say("run", *flags, *component, *words, code=code)


def _handle(said: str) -> str:
    found = re.search(r"^kubernetes_ft://\S+$", said, re.MULTILINE)
    assert found is not None, said
    return found[0]


@pytest.fixture
def shell(kubernetes: Cluster, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(Space(kubernetes), tmp_path)
    yield made
    kubernetes.api.delete(f"/api/v1/namespaces/{made.space.name}")


def test_a_killed_pod_s_group_comes_back_and_cancel_leaves_nothing(shell: Shell) -> None:
    space = shell.space
    shell.become_guest()
    shell.allow_guest()
    handle = _handle(shell.run("--replicas", "2", "--", *_MODEL, "--steps", "1000000", "--pace", "0.05"))
    with (
        shell.following(f"{handle}/trainer/0") as log,
        shell.following(f"{handle}/trainer/1") as victim,
    ):
        _until(log, "groups 2")
        assert f"{handle}  RUNNING" in shell.say("list", "-s", "kubernetes_ft")
        status = shell.say("status", handle)
        assert "State: RUNNING" in status
        assert "trainer[1]:RUNNING" in status
        pods = {pod["metadata"]["labels"].get("torchft-x/group"): pod["metadata"] for pod in mine(space, "pods")}
        space.delete("pods", pods["1"]["name"], gracePeriodSeconds=0)
        _until(log, "groups 1")
        _until(log, "groups 2")
        assert pods["0"]["uid"] in [pod["metadata"]["uid"] for pod in mine(space, "pods")]
        assert pods["1"]["uid"] not in [pod["metadata"]["uid"] for pod in mine(space, "pods")]
        shell.say("cancel", handle)
        wait_for(lambda: not any(_seldom(space, kind) for kind in _KINDS), 60, "the end of all objects")
        assert "stopped by SIGTERM" in victim.communicate(timeout=scaled(30))[0]  # the pod after the killed one
        assert (log.wait(scaled(30)), victim.returncode) == (0, 0)
    assert "there is no job" in shell.say("log", handle, code=2)


def _until(log: subprocess.Popen[str], words: str) -> None:
    assert log.stdout is not None
    assert any(words in line for line in log.stdout), f"the log ended without {words!r}"


def _seldom(space: Space, kind: str) -> list[Any]:
    time.sleep(0.1)  # a look costs the API server more than the wait
    return mine(space, kind)


def mine(space: Space, kind: str) -> list[Any]:
    """Objects of the job; also Secrets, of which a namespace has one of its own."""
    return [o for o in space.list(kind) if "app.kubernetes.io/instance" in (o["metadata"].get("labels") or {})]


def test_a_job_that_trains_to_its_end_is_a_success_and_its_log_is_there(shell: Shell) -> None:
    out = shell.run("--replicas", "2", "--", *_MODEL, "--steps", "10", wait=True)
    assert "Job finished: SUCCEEDED" in out
    handle = _handle(out)
    assert "State: SUCCEEDED" in shell.say("status", handle)
    assert "step    10" in shell.say("log", f"{handle}/trainer/0")


def test_a_group_that_gives_up_fails_the_job_with_its_sentence(shell: Shell) -> None:
    handle = _handle(shell.run("--replicas", "1", "--script", "scripts/train_ddp.py", "--", "--no-such-flag"))
    jobs = lambda: _seldom(shell.space, "batch/v1/jobs")  # noqa: E731
    wait_for(lambda: all(job["status"].get("succeeded") for job in jobs()), 90, "its end")
    status = shell.say("status", handle)
    assert "State: FAILED" in status
    assert re.search(r"Msg: .*group 0", status), status


def test_who_may_nothing_is_told_which_rule_is_missing(shell: Shell) -> None:
    shell.become_guest()
    said = shell.run("--replicas", "1", code=2)
    assert 'needs the rule `- {apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}`' in said
    assert "Traceback" not in said
    shell.allow_guest(rules=1)
    said = shell.run("--replicas", "1", code=2)
    assert 'resources: ["secrets"], verbs: ["create"]}`' in said
    wait_for(lambda: not shell.space.list("batch/v1/jobs"), 30, "the end of what was made before the refusal")
