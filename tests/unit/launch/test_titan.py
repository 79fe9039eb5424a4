"""torchtitan's trainer on the schedulers of our own; on TorchX's: tests/process/launch/test_components.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.unit.launch.slurm.made import request as slurm_request
from torchft_x import env
from torchft_x.launch.job.build import titan_app
from torchft_x.launch.kubernetes.app import request as kubernetes_request
from torchft_x.launch.kubernetes.rules.parts import PodSettings

WORDS = ["--module", "torchft.llama3", "--config", "debug", "--training.steps", "3"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (env.TOKEN, env.TOKEN_FILE, env.LIGHTHOUSE):
        monkeypatch.delenv(name, raising=False)


def test_on_slurm(tmp_path: Path) -> None:
    app = titan_app(WORDS[4:], module=WORDS[1], config=WORDS[3], replicas=3, gpu=8, run_dir=str(tmp_path))
    script = str(slurm_request(app))
    assert shlex.join(["-m", "torchft_x.compat.titan", *WORDS]) in script
    assert "JE_ARROW_MALLOC_CONF" in script
    assert "--array=0-2" in script


def test_on_kubernetes() -> None:
    app = titan_app(WORDS[4:], module=WORDS[1], config=WORDS[3], replicas=2, gpu=8, image="registry/titan:1")
    made = kubernetes_request(app, "1a2b3c4d", PodSettings(), "nvidia.com/gpu")
    trainers = [c for o in made.objects for c in _containers(o) if "torchft_x.compat.titan" in c.get("command", [])]
    assert len(trainers) == 2
    for container in trainers:
        assert container["command"][-len(WORDS) - 2 :] == ["-m", "torchft_x.compat.titan", *WORDS]
        assert {"name": "JE_ARROW_MALLOC_CONF", "value": "background_thread:false"} in container["env"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def _containers(thing: object) -> list[dict]:
    """All containers in an object, wherever they stand."""
    if isinstance(thing, list):
        return [c for part in thing for c in _containers(part)]
    if not isinstance(thing, dict):
        return []
    return [*thing.get("containers", []), *(c for part in thing.values() for c in _containers(part))]
