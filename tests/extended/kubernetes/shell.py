"""Commands of TorchX and of torchft_x, run as a user of a cluster runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.extended.kubernetes.cluster import IMAGE
from tests.extended.kubernetes.space import Space
from tests.started import ROOT, environment
from tests.unit.launch.kubernetes import rights
from tests.unit.launch.lines import TORCHX_FT
from tests.util import scaled

USER = 65534  # user id in the pods
TOLERATION = 1  # seconds that pods stay on a node that is not ready
_CONTAINER = {
    "imagePullPolicy": "Never",
    "securityContext": {"readOnlyRootFilesystem": True},
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
_OVERLAY = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": USER},
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "containers": [{"name": role, **_CONTAINER} for role in ("lighthouse", "trainer")],
}
MODEL = ["--width", "32", "--layers", "1", "--heads", "2", "--batch-size", "2", "--seq-len", "32", "--data-mb", "0.2"]
TRIAL = ["--script", "benchmarks/trial/ddp.py"]  # scripts/train_ddp.py with --pace, --until and --dump-params


class Shell:
    """Command line of one user of the cluster, with a kubeconfig and a namespace."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space = space
        self.overlay = folder / "overlay.yaml"
        self.overlay.write_text(json.dumps(_OVERLAY))  # JSON is valid YAML
        self.component = "ddp"
        self.memory = 1000  # MB of each container
        self.kubeconfig = self.here(space.cluster.kubeconfig)

    def here(self, kubeconfig: Path) -> Path:
        """Write a copy of a kubeconfig with this namespace in its context, and return its path."""
        found = json.loads(kubeconfig.read_text())
        found["contexts"][0]["context"]["namespace"] = self.space.name
        path = self.overlay.with_name(kubeconfig.name)
        path.write_text(json.dumps(found))
        return path

    def become_guest(self) -> None:
        """Continue as a user without rights."""
        self.kubeconfig = self.here(self.space.cluster.guest_kubeconfig())

    def allow_guest(self, rules: int = 99) -> None:
        """Bind the rights that docs/kubernetes.md lists as sufficient, or the first `rules` of them, to the guest."""
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

    def own(self, *words: str, code: int = 0, seconds: float = 60) -> str:
        """Run ``torchft_x WORDS``. Return its output."""
        command = [sys.executable, "-m", "torchft_x", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=self._variables(), capture_output=True, text=True, timeout=scaled(seconds)
        )
        assert done.returncode == code, f"torchft_x {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", TORCHX_FT, *words], cwd=ROOT, env=self._variables(), **pipe)

    def _variables(self) -> dict[str, str]:
        return {**environment(), "KUBECONFIG": str(self.kubeconfig), "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def following(self, part: str) -> Iterator[subprocess.Popen[str]]:
        with self.start("log", "-t", part) as log:
            try:
                yield log
            finally:
                log.kill()

    def run(self, *words: str, code: int = 0, wait: bool = False, cfg: str = "") -> str:
        options = f"overlay={self.overlay},grace=15,toleration={TOLERATION}{cfg}"
        flags = ["-s", "kubernetes_ft", "--workspace=", "-cfg", options, *(["--wait"] if wait else [])]
        component = [f"./components.py:{self.component}", "--image", IMAGE, "--cpu", "1", "--memMB", str(self.memory)]
        return self.say("run", *flags, *component, *words, code=code)


def handle_of(said: str) -> str:
    found = re.search(r"^kubernetes_ft://\S+$", said, re.MULTILINE)
    assert found is not None, said
    return found[0]


def until(log: subprocess.Popen[str], words: str) -> str:
    """Return the next line with these words."""
    assert log.stdout is not None
    found = next((line for line in log.stdout if words in line), None)
    assert found is not None, f"the log ended without {words!r}"
    return found
