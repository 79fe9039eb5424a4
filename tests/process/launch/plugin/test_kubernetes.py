"""The commands of kubernetes_ft where there is no cluster, on both TorchX lines; with one: tests/extended/kubernetes/test_scheduler.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.started import ROOT, environment
from tests.unit.launch.kubernetes.answering import Request, answering
from tests.unit.launch.kubernetes.rules.test_state import RUNS, job, pod
from tests.unit.launch.lines import BOTH, interpreter, torchx
from tests.util import scaled

_RUN = ("run", "-s", "kubernetes_ft", "--workspace=")
_JOB = ("./components.py:ddp", "--image", "i:1")
_TITAN = ("./components.py:titan", "--image", "i:1", "--config", "mine")


def say(line: str, *words: str, home: Path, code: int = 0) -> str:
    """In a shell of somebody who has neither a kubeconfig nor Docker."""
    done = torchx(*words, line=line, ft=True, HOME=str(home))
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
    out = say(line, *_RUN, "--dryrun", *_TITAN, "--", "--a.b", "3", home=tmp_path)
    *_, trainer = yaml.safe_load_all(out[out.index("apiVersion:") :])
    (container,) = trainer["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:6] == ["-m", "torchft_x.compat", "-m", "torchft_x", "supervise"]
    assert container["command"][-6:] == ["--module", "torchft.llama3", "--config", "mine", "--a.b", "3"]


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
def test_every_command_about_a_job(line: str, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    jobs = [job("lighthouse"), job("trainer", 0), job("trainer", 1)]
    pods = [pod("lighthouse", **RUNS), pod("trainer", 0, made=1, **RUNS), pod("trainer", 1, made=2, **RUNS)]

    def answer(asked: Request) -> tuple[int, Any]:
        path = asked.path.partition("?")[0]
        if path.endswith("/log"):
            return 200, "2026-11-25T12:00:00Z step 1\n"
        return 200, {"items": jobs if path.endswith("/jobs") else pods if path.endswith("/pods") else []}

    with answering(answer, tmp_path / ".kube/config") as asked:
        handle = "kubernetes_ft://torchx/team:a"
        assert "State: RUNNING" in say(line, "status", handle, home=tmp_path)
        assert f"{handle}  RUNNING" in say(line, "list", "-s", "kubernetes_ft", home=tmp_path).replace(" " * 12, "")
        assert say(line, "log", f"{handle}/trainer/1", home=tmp_path) == "trainer/1 step 1\n"
        assert "'num_replicas': 2" in say(line, "describe", handle, home=tmp_path)
        if line == "nightly":
            said = say(line, "list", "-s", "kubernetes_ft", "-cfg", "namespace=other,context=c", home=tmp_path)
            assert "kubernetes_ft://torchx/other:a@c" in said
        jobs[0] = job("lighthouse", end="Failed")
        assert "State: FAILED" in say(line, "status", handle, home=tmp_path)
        say(line, "cancel", handle, home=tmp_path)  # also of a job that has failed: what is left of it
        (deleted,) = (a.path for a in asked if a.method == "DELETE")
        assert "/jobs/a-lighthouse-0?" in deleted
        del asked[:], pods[1:]
        jobs[1:] = [job("trainer", n, end="Complete") for n in range(2)]
        say(line, "cancel", handle, home=tmp_path)
        assert not [a for a in asked if a.method == "DELETE"], "the logs of a job that is over stay"


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
