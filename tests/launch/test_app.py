"""The rendered app, compared with golden files. TORCHFT_X_REGENERATE=1 writes them anew; read the diff then."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from torchx import specs

from torchft_x.errors import ConfigError
from torchft_x.launch.app import to_app
from torchft_x.launch.job import FtJob

GOLDEN = Path(__file__).parent / "golden"
FIELDS = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries", "port_map", "mounts", "metadata")

JOBS = {
    "default": FtJob(script="scripts/train_ddp.py", run_dir="/data/runs/1"),
    "everything": FtJob(
        script="train.py",
        script_args=("--steps", "200", "--data", "a b,c", "--", "$HOME"),
        run_dir="/shared/run",
        name="big-job",
        replicas=3,
        workers_per_replica=8,
        max_restarts=3,
        min_replicas=2,
        env={"A": "1", "TORCHFT_X_LOG_LEVEL": "lost: --log_level decides"},
        image="registry/img:1",
        cpu=16,
        gpu=8,
        memMB=65536,
        log_level="debug",
    ),
    "external_lighthouse": FtJob(script="train.py", run_dir="/r", lighthouse="http://node1:29510", replicas=1),
    "named_resource": FtJob(script="train.py", run_dir="/r", h="aws_p3.2xlarge"),
}


def rendered(app: specs.AppDef) -> str:
    """What is ours in an app, the same on every TorchX line."""
    roles = []
    for role in app.roles:
        resource = {k: getattr(role.resource, k) for k in ("cpu", "gpu", "memMB")}
        roles.append({k: getattr(role, k) for k in FIELDS} | {"resource": resource})
    return json.dumps({"name": app.name, "roles": roles}, indent=2) + "\n"


@pytest.mark.parametrize("name", JOBS)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    text = rendered(to_app(JOBS[name]))
    if os.environ.get("TORCHFT_X_REGENERATE") == "1":
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_is_used() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(JOBS)


def test_no_token_in_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_TOKEN", "very-secret")
    assert "very-secret" not in repr(to_app(JOBS["everything"]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"script": ""}, "--script"),
        ({"run_dir": "runs"}, "--run_dir"),
        ({"name": "a b"}, "--name"),
        ({"replicas": 0}, "--replicas is 0"),
        ({"workers_per_replica": 0}, "--workers_per_replica"),
        ({"min_replicas": 0}, "--min_replicas"),
        ({"replicas": 2, "min_replicas": 3}, r"--min_replicas is 3.*--replicas \(2\)"),
        ({"max_restarts": -1}, "--max_restarts"),
        ({"gpu": -1}, "--gpu"),
        ({"log_level": "loud"}, "--log_level"),
        ({"lighthouse": "nowhere"}, "--lighthouse 'nowhere'"),
        ({"lighthouse": "http://h:0"}, "port 0"),
        ({"lighthouse": "h", "lighthouse_from": "TORCHFT_LIGHTHOUSE"}, "TORCHFT_LIGHTHOUSE 'h'"),
    ],
)
def test_mistakes_are_named(options: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FtJob(**({"script": "train.py", "run_dir": "/r"} | options))
