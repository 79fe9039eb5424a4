"""torchtitan's Trainer by `torchx run -s kubernetes_ft ./components.py:titan`: a group's pod is lost, and comes back equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.extended.compat.test_titan import CONSTANT_RATE, CPU, EXAMPLES
from tests.extended.compat.test_trainers import HOW
from tests.extended.kubernetes.cluster import image_environment
from tests.extended.kubernetes.shell import ROOT, Shell, handle_of, until
from tests.interpreters import TRAINERS_PYTHON
from torchft_x import env
from torchft_x.launch.kubernetes.rules import names

pytestmark = [pytest.mark.timeout(600)]


def test_torchtitan_trains_through_a_lost_pod(shell: Shell) -> None:
    python = env.read(TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    shell.component, shell.memory = "titan", 3000
    _use_image_of_trainers(shell, python)
    methods = ("--fault_tolerance.semi_sync_method", "None", "--training.steps", "100000")
    config = ("--replicas", "2", "--module", "titan_config", "--config", "podmodel")
    handle = handle_of(shell.run(*config, "--", *methods, "--metrics.log_freq", "1", *CONSTANT_RATE))
    with shell.following(f"{handle}/trainer/0") as first, shell.following(f"{handle}/trainer/1") as second:
        for log in (first, second):
            until(log, "shared at 10:")
        pod = shell.space.pod(**{names.GROUP: "1"})
        assert pod is not None
        shell.space.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
        until(second, "healed to step")
        weights = [until(second, "shared at") for _ in range(5)][-1].partition("shared")[2]
        until(first, weights)
    assert f"{handle}  RUNNING" in shell.say("list", "-s", "kubernetes_ft")
    shell.say("cancel", handle)


def _use_image_of_trainers(shell: Shell, python: str) -> None:
    """Let the trainers' containers run that Python, in the one folder that they may write to."""
    overlay = json.loads(shell.overlay.read_text())
    trainer = next(c for c in overlay["containers"] if c["name"] == "trainer")
    variables = {
        "PATH": f"{Path(python).parent}:{image_environment()['PATH']}",
        "PYTHONPATH": f"{ROOT}:{CPU}:{EXAMPLES}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    trainer |= {"workingDir": "/tmp", "env": [{"name": k, "value": v} for k, v in variables.items()]}
    shell.overlay.write_text(json.dumps(overlay))
