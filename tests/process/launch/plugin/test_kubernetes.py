"""The commands of kubernetes_ft where there is no cluster, on both TorchX lines; with one: tests/extended/kubernetes/test_scheduler.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.launch.kubernetes.answering import Request, answering
from tests.unit.launch.kubernetes.rules.test_state import job
from tests.unit.launch.lines import BOTH, ROOT, environment, interpreter
from tests.util import scaled

_TORCHX = "import sys; from torchft_x.launch.plugin.command import CmdFt; from torchx.cli.main import main; CmdFt(); main(sys.argv[1:])"
_RUN = ("run", "-s", "kubernetes_ft", "--workspace=")
_JOB = ("./components.py:ddp", "--image", "i:1")


def say(line: str, *words: str, home: Path, code: int = 0) -> str:
    """In a shell of somebody who has neither a kubeconfig nor Docker."""
    variables = {k: v for k, v in environment(HOME=str(home)).items() if k not in ("KUBECONFIG", "DOCKER_HOST")}
    done = subprocess.run(
        [interpreter(line), "-c", _TORCHX, *words],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("line", BOTH)
def test_a_dry_run_needs_no_cluster(line: str, tmp_path: Path) -> None:
    out = say(line, *_RUN, "-cfg", "node_selector=pool:gpus,zone:b,ttl=60,queue=team", "--dryrun", *_JOB, home=tmp_path)
    objects = list(yaml.safe_load_all(out[out.index("apiVersion:") :]))
    kinds = ["Job", "Secret", "ConfigMap", "Service", "Service", "NetworkPolicy", "NetworkPolicy"]
    kinds += ["PodDisruptionBudget", "Job", "Job"]
    assert [o["kind"] for o in objects] == kinds
    assert objects[-1]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpus", "zone": "b"}
    assert objects[0]["spec"]["ttlSecondsAfterFinished"] == 60


@pytest.mark.parametrize("line", BOTH)
def test_a_job_of_another_context_is_found_by_its_handle(line: str, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    config = tmp_path / ".kube/config"

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return 201, {"metadata": {"name": asked.body["metadata"]["name"], "uid": "u"}}
        found = [job("lighthouse", end="Complete")] if asked.path.partition("?")[0].endswith("/jobs") else []
        return 200, {"items": found}

    with answering(answer, config) as asked:
        found = json.loads(config.read_text())
        found["clusters"].append({"name": "away", "cluster": {"server": "http://127.0.0.1:9"}})
        found["contexts"][0]["name"] = "over/there"
        found["contexts"].append({"name": "away", "context": {"cluster": "away", "user": "u"}})
        config.write_text(json.dumps({**found, "current-context": "away"}))
        said = say(line, *_RUN, "-cfg", "context=over/there", *_JOB, home=tmp_path)
        handle = next(word for word in said.split() if word.startswith("kubernetes_ft://"))
        assert handle.endswith("@over%2Fthere")
        assert "State: SUCCEEDED" in say(line, "status", handle, home=tmp_path)
        assert "can't be reached" in say(line, "status", handle.partition("@")[0], home=tmp_path, code=2)
    assert "POST" in {a.method for a in asked}


@pytest.mark.parametrize("line", BOTH)
def test_without_a_cluster_there_is_a_sentence(line: str, tmp_path: Path) -> None:
    assert f"no cluster is configured here: {tmp_path}/.kube/config does not exist" in say(
        line, *_RUN, *_JOB, home=tmp_path, code=2
    )
    assert ".kube/config does not exist" in say(line, "status", "kubernetes_ft://torchx/me:a-1", home=tmp_path, code=2)


def test_an_option_it_does_not_have_and_a_cluster_that_is_away(tmp_path: Path) -> None:
    said = say("this", *_RUN, "-cfg", "backend=volcano", "--dryrun", *_JOB, home=tmp_path, code=2)
    assert "-cfg backend=...: the scheduler kubernetes_ft has no such option" in said
    (tmp_path / ".kube").mkdir()
    nowhere = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
    }
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    (tmp_path / ".kube/config").write_text(yaml.safe_dump({**nowhere, **context}))
    said = say("this", "list", "-s", "kubernetes_ft", home=tmp_path, code=2)
    assert "can't be reached" in said
    assert "Connection refused" in said


def test_torchx_s_nightly_line_finds_it_where_it_is_installed_and_the_default_stays(tmp_path: Path) -> None:
    (tmp_path / "torchx_plugins").mkdir()
    (tmp_path / "torchx_plugins/schedulers").symlink_to(ROOT / "torchft_x/launch/plugin/namespace")
    code = "from torchx.schedulers import get_scheduler_factories as f; print([*f()][:2])"
    done = subprocess.run(
        [interpreter("nightly"), "-c", code],
        cwd=tmp_path,
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.stdout == "['local_ft', 'kubernetes_ft']\n", done.stderr
