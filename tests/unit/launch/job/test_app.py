"""The rendered app, compared with golden files. ``pytest --rewrite`` writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchx import specs
from torchx.specs import macros

from tests.golden import Golden
from torchft_x.launch.job.app import lighthouse_app, to_app
from torchft_x.launch.job.job import ExtraRole, FtJob, FtLighthouse
from torchft_x.launch.job.parse import parse_mounts

GOLDEN = Path(__file__).parents[1] / "golden/app"
FIELDS = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries", "port_map", "metadata")

JOBS = {
    "default": FtJob(script="scripts/train_ddp.py", run_dir="/data/runs/1"),
    "everything": FtJob(
        script="train.py",
        script_args=("--steps", "200", "--data", "a b,c", "--", "$HOME"),
        run_dir="/shared/run",
        name="big-job",
        replicas=3,
        workers_per_replica=8,
        nodes_per_replica=2,
        max_restarts=3,
        min_replicas=2,
        token_file="/secrets/token",
        env={"A": "1", "NCCL_DEBUG": "WARN", "TORCHFT_X_LOG_LEVEL": "lost: --log_level decides"},
        mounts=parse_mounts("type=bind,src=/data,dst=/in,readonly,type=volume,src=v,dst=/shared"),
        image="registry/img:1",
        resource=specs.resource(cpu=16, gpu=8, memMB=65536),
        log_level="warning",
        debug=True,
        tls="on",
    ),
    "titan": FtJob(
        script="", module="torchft_x.compat.titan", script_args=("--module", "a.b", "--config", "c"), run_dir="/r"
    ),
    "two_lighthouses": FtJob(script="train.py", run_dir="/r", lighthouses=2),
    "external_lighthouse": FtJob(script="train.py", run_dir="/r", lighthouse=("http://node1:29510",), replicas=1),
    "named_resource": FtJob(script="train.py", run_dir="/r", resource=specs.resource(h="aws_p3.2xlarge")),
    "extra_roles": FtJob(
        script="train.py",
        run_dir="/r",
        env={"A": "job", "B": "job"},
        extra_roles=(
            ExtraRole("evaluator", "evaluate.py --every 10", env={"A": "role"}),
            ExtraRole(
                "data", ["serve", "--shard", "${replica_id}"], replicas=2, max_restarts=0, image="data:1", h="cpu.small"
            ),
        ),
    ),
}


def rendered(app: specs.AppDef) -> str:
    """What is ours in an app, the same on every TorchX line."""
    roles = []
    for role in app.roles:
        resource = {k: getattr(role.resource, k) for k in ("cpu", "gpu", "memMB")}
        facts = {k: getattr(role.ft, k) for k in ("kind", "groups", "nodes", "min_replicas", "own_lighthouse")}
        mounts = [repr(m) for m in role.mounts]
        roles.append({k: getattr(role, k) for k in FIELDS} | {"mounts": mounts, "resource": resource, "ft": facts})
    return json.dumps({"name": app.name, "roles": roles}, indent=2) + "\n"


def test_golden(golden: Golden) -> None:
    apps = {name: to_app(job) for name, job in JOBS.items()}
    apps["lighthouse"] = lighthouse_app(FtLighthouse(min_replicas=2, port=0, run_dir="/r", token_file="/t"))
    apps["lighthouse_of_several"] = lighthouse_app(FtLighthouse(lease_dir="/shared/lh", token_file="/t"))
    golden.check_all(GOLDEN, {f"{name}.json": rendered(app) for name, app in apps.items()})


def test_no_token_in_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_TOKEN", "very-secret")
    assert "very-secret" not in repr(to_app(JOBS["everything"]))


def test_the_port_is_the_runs_own() -> None:
    ports = {FtJob(script="t.py", run_dir=f"/runs/{k}").lighthouse_port for k in range(50)}
    assert len(ports) > 40
    assert all(29510 <= p < 31510 for p in ports)
    assert FtJob(script="t.py", run_dir="/runs/1").lighthouse_port in ports  # of the run directory alone


def test_a_hook_is_called_once_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def hook(scheduler: str, info: object) -> None:
        calls.append(scheduler)  # it returns nothing: the request stays as it is

    monkeypatch.setattr(
        "torchft_x.launch.schedulers.adjust", lambda role, scheduler, info: calls.append(role.name) or info
    )
    app = to_app(FtJob(script="t.py", run_dir="/r", extra_roles=(ExtraRole("e", "x"),), hooks=(hook,)))
    request = object()
    assert [role.pre_proc("slurm", request) for role in app.roles] == [request] * 3
    assert calls == ["lighthouse", "trainer", "e", "slurm"]


def test_words_of_the_user_arrive_as_they_were_given_but_for_the_macros_of_torchx() -> None:
    words = ("--pw=a$$b", "$$", "$1", "$HOME", "$${app_id}", "${app_id}")
    job = FtJob(script="a$$.py", script_args=words, run_dir="/r", env={"P": "p$$w", "A": "${app_id}"})
    role = macros.Values(img_root="", app_id="app-1", replica_id="0", rank0_env="H").apply(to_app(job).roles[-1])
    assert role.args[-7:] == ["a$$.py", "--pw=a$$b", "$$", "$1", "$HOME", "$${app_id}", "app-1"]
    assert (role.env["P"], role.env["A"]) == ("p$$w", "app-1")
