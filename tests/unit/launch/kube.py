"""TorchX's Kubernetes requests for an app of ours, made by the interpreter of either line."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.launch.lines import ROOT, environment, interpreter
from tests.util import scaled

PVC = ("type=volume", "src=claim", "dst=/shared")


SHARED: dict[str, Any] = {"mounts": PVC, "run_dir": "/shared/run"}


@functools.cache
def has_package(python: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec("kubernetes") is not None
    return subprocess.run([python, "-c", "import kubernetes"], capture_output=True, check=False).returncode == 0


def need_package(line: str) -> str:
    """Return the interpreter of the line, or skip the test if it has no package ``kubernetes``, which TorchX needs."""
    python = interpreter(line)
    if not has_package(python):
        pytest.skip(f"{python} has no package kubernetes: pip install kubernetes")
    return python


def ask(line: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of kube_request.py from the interpreter of the line."""
    python = need_package(line)
    if line == "this":
        from tests.unit.launch import kube_request

        return kube_request.answer(**options)
    done = subprocess.run(
        [python, "-m", "tests.unit.launch.kube_request", json.dumps(options)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Request:
    """A Volcano job as TorchX would submit it."""

    def __init__(self, job: dict, app: str = "", completing: str = "") -> None:
        self.job = job
        self.app = app  # repr of the AppDef
        self.completing = completing  # TorchX's state for the phase Completing
        self.spec = job["spec"]
        self.tasks = {t["name"]: t for t in self.spec["tasks"]}

    def pod(self, task: str) -> dict:
        return self.tasks[task]["template"]["spec"]

    def container(self, task: str) -> dict:
        (container,) = self.pod(task)["containers"]
        return container

    def env(self, task: str) -> dict[str, Any]:
        """Return a task's variables: plain values or, for those that Kubernetes sets, the path of the source field."""
        pairs = self.container(task)["env"]
        assert len({e["name"] for e in pairs}) == len(pairs)
        return {e["name"]: e["value"] if "value" in e else e["valueFrom"]["fieldRef"]["fieldPath"] for e in pairs}

    def everywhere(self, name: str) -> set[Any]:
        """Return the values of a variable over all pods, with None for a pod without it."""
        return {self.env(t).get(name) for t in self.tasks}


def request(line: str = "this", **options: Any) -> Request:
    answer = ask(line, options)
    return Request(answer["job"], answer["app"], answer["completing"])
