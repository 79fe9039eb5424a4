"""`-cfg backend=jobset` on a real control plane, with JobSet's definition and a stand-in for its controller (jobsets.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes import jobsets
from tests.kubernetes.api import ApiError
from tests.kubernetes.shell import MODEL, Shell, handle_of
from tests.launch.kubernetes.test_app import hsdp
from tests.util import wait_for
from torchft_x import env
from torchft_x.core.kubernetes.parts import Wishes
from torchft_x.core.kubernetes.sets import VERSION
from torchft_x.core.kubernetes.state import PartState
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.app import request, with_token
from torchft_x.launch.kubernetes.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_SETS = f"{VERSION}/jobsets"
_JOB = ["--replicas", "2", "--nodes_per_replica", "2", "--workers_per_replica", "2", "--", *MODEL]


@pytest.fixture
def sets(shell: Shell) -> Iterator[Shell]:
    """The shell of who may use JobSets, where there are some."""
    jobsets.install(shell.space.cluster.api)
    wait_for(lambda: _served(shell), 30, "JobSets to be served")
    shell.become_guest()
    shell.allow_guest(sets=True)
    with jobsets.controller(shell.space.cluster.api, shell.space.name):
        yield shell


def _served(shell: Shell) -> bool:
    time.sleep(0.1)
    try:
        listed = shell.space.cluster.api.get(f"/apis/{VERSION}")
    except ApiError as e:
        if e.status != 404:
            raise
        return False
    return any(resource["name"] == "jobsets" for resource in listed["resources"])


def _gone(shell: Shell) -> bool:
    return not any(shell.space.list(kind) for kind in (_SETS, "batch/v1/jobs", "pods"))


def _jobs(cluster: Cluster, app: str) -> dict[str, str]:
    """The uids of its Jobs by their names."""
    time.sleep(0.2)
    return {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.list("Job", jobs.of(app))}


def _parts(cluster: Cluster, app: str) -> tuple[PartState, ...]:
    time.sleep(0.2)
    found = jobs.find(cluster, app)
    return found.parts if found is not None else ()


def test_made_made_again_held_and_cancelled_whole(sets: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pods have an image that no node has: they are made, and don't start."""
    for name in (env.TOKEN, env.TOKEN_FILE, env.LIGHTHOUSE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(env.KUBECONFIG, str(sets.kubeconfig))
    api, space, cluster = sets.space.cluster.api, sets.space, Cluster()
    asked = hsdp(nodes_per_replica=2, workers_per_replica=2, image="nobody/has:1")
    made = request(asked, "1", Wishes(backend="jobset", queue="team"), "nvidia.com/gpu")
    jobs.submit(cluster, with_token(made))
    app = made.app
    nodes = {group: [f"{app}-trainer-{group}-n{node}-0" for node in (0, 1)] for group in (0, 1)}
    every = sorted([f"{app}-lighthouse-0", *nodes[0], *nodes[1]])
    before = wait_for(lambda: found if sorted(found := _jobs(cluster, app)) == every else None, 30, "all Jobs")
    assert [(job.app, job.state) for job in jobs.every(cluster)] == [(app, "PENDING")]
    # a whole Job fails
    at = f"{space.at('batch/v1/jobs')}/{nodes[1][1]}"
    api.patch(at, {"spec": {"activeDeadlineSeconds": 1}})
    renewed = lambda: [name for name, uid in _jobs(cluster, app).items() if uid != before[name]]  # noqa: E731
    wait_for(lambda: sorted(renewed()) == nodes[1] and len(_jobs(cluster, app)) == 5, 60, "both Jobs of the group")
    wait_for(lambda: [part.restarts for part in _parts(cluster, app)] == [0, 0, 0, 1, 1], 30, "the restarts to be seen")
    # as Kueue holds it
    held = f"{space.at(_SETS)}/{app}-trainer-0"
    api.patch(held, {"spec": {"suspend": True}})
    reasons = lambda: [part.reason for part in _parts(cluster, app) if part.group == "0"]  # noqa: E731
    wait_for(lambda: reasons() == ["it waits in the queue team"] * 2, 60, "the end of the group's pods")
    wait_for(lambda: len(_jobs(cluster, app)) == 3, 30, "the end of the group's Jobs")
    api.patch(held, {"spec": {"suspend": False}})
    wait_for(lambda: len(_jobs(cluster, app)) == 5, 60, "all Jobs")
    assert jobs.cancel(cluster, app)
    wait_for(lambda: _gone(sets), 120, "the end of all objects")  # the collector learns of JobSets within 30 s


def test_a_job_of_sets_ends_well(sets: Shell) -> None:
    out = sets.run(*_JOB, "--steps", "10", wait=True, cfg=",backend=jobset")
    assert "Job finished: SUCCEEDED" in out
    handle = handle_of(out)
    ends = lambda: [o["status"].get("terminalState") for o in sets.space.list(_SETS)]  # noqa: E731
    wait_for(lambda: ends() == ["Completed"] * 2, 60, "the end of both JobSets")
    assert "State: SUCCEEDED" in sets.say("status", handle)
    assert "step    10" in sets.say("log", f"{handle}/trainer/0")


def test_where_there_are_no_sets_nothing_is_made(shell: Shell) -> None:
    api: Any = shell.space.cluster.api
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for found in api.get(definitions)["items"]:
        api.delete(f"{definitions}/{found['metadata']['name']}")
    wait_for(lambda: not _served(shell), 30, "the end of the definition")
    said = shell.run("--replicas", "1", code=2, cfg=",backend=jobset")
    assert "the cluster knows no JobSets" in said
    assert "use backend=job" in said
    assert shell.space.list("batch/v1/jobs") == []
