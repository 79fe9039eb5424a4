"""`torchx run -s kubernetes_ft` on a real control plane: it trains, a group's pod is killed and comes back, it is cancelled."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.extended.kubernetes.shell import MODEL, TRIAL, Shell, handle_of, until
from tests.extended.kubernetes.space import Space
from tests.util import scaled, wait_for

pytestmark = [pytest.mark.timeout(300)]

_KINDS = ("batch/v1/jobs", "services", "secrets", "networking.k8s.io/v1/networkpolicies", "pods")


@pytest.mark.parametrize("tls", ["off", "on"])
def test_a_killed_pod_s_group_comes_back_and_cancel_leaves_nothing(shell: Shell, tls: str) -> None:
    space = shell.space
    shell.become_guest()
    shell.allow_guest()
    words = ("--replicas", "2", "--tls", tls, *TRIAL, "--", *MODEL, "--steps", "1000000", "--pace", "0.05")
    handle = handle_of(shell.run(*words))
    with (
        shell.following(f"{handle}/trainer/0") as log,
        shell.following(f"{handle}/trainer/1") as victim,
    ):
        until(log, "groups 2")
        assert f"{handle}  RUNNING" in shell.say("list", "-s", "kubernetes_ft")
        status = shell.say("status", handle)
        assert "State: RUNNING" in status
        assert "trainer[1]:RUNNING" in status
        # From the page, by the API server's proxy.
        assert "2 of 2 groups train" in shell.own("status", handle, "--once")
        pods = {pod["metadata"]["labels"].get("torchft-x/group"): pod["metadata"] for pod in mine(space, "pods")}
        space.delete("pods", pods["1"]["name"], gracePeriodSeconds=0)
        until(log, "groups 1")
        until(log, "groups 2")
        assert pods["0"]["uid"] in [pod["metadata"]["uid"] for pod in mine(space, "pods")]
        assert pods["1"]["uid"] not in [pod["metadata"]["uid"] for pod in mine(space, "pods")]
        shell.say("cancel", handle)
        wait_for(lambda: not any(_seldom(space, kind) for kind in _KINDS), 60, "the end of all objects")
        assert "stopped by SIGTERM" in victim.communicate(timeout=scaled(30))[0]  # the pod after the killed one
        assert (log.wait(scaled(30)), victim.returncode) == (0, 0)
    assert "there is no job" in shell.say("log", handle, code=2)


def _seldom(space: Space, kind: str) -> list[Any]:
    time.sleep(0.1)  # a look costs the API server more than the wait
    return mine(space, kind)


def mine(space: Space, kind: str) -> list[Any]:
    """Objects of the job; also Secrets, of which a namespace has one of its own."""
    return [o for o in space.list(kind) if "app.kubernetes.io/instance" in (o["metadata"].get("labels") or {})]


def test_a_job_that_trains_to_its_end_is_a_success_and_its_log_is_there(shell: Shell) -> None:
    out = shell.run("--replicas", "2", "--", *MODEL, "--steps", "10", wait=True)
    assert "Job finished: SUCCEEDED" in out
    handle = handle_of(out)
    assert "State: SUCCEEDED" in shell.say("status", handle)
    assert "step    10" in shell.say("log", f"{handle}/trainer/0")


def test_a_group_that_gives_up_fails_the_job_with_its_sentence(shell: Shell) -> None:
    handle = handle_of(shell.run("--replicas", "1", "--script", "scripts/train_ddp.py", "--", "--no-such-flag"))
    jobs = lambda: _seldom(shell.space, "batch/v1/jobs")  # noqa: E731
    wait_for(lambda: all(job["status"].get("succeeded") for job in jobs()), 90, "its end")
    status = shell.say("status", handle)
    assert "State: FAILED" in status
    assert re.search(r"Msg: .*group 0", status), status


def test_who_may_nothing_is_told_which_rule_is_missing(shell: Shell) -> None:
    shell.become_guest()
    said = shell.run("--replicas", "1", code=2)
    assert 'resources: ["jobs"], verbs: ["create"]' in said
    assert "Traceback" not in said
    shell.allow_guest(rules=1)
    said = shell.run("--replicas", "1", code=2)
    assert 'resources: ["secrets"], verbs: ["create"]}`' in said
    wait_for(lambda: not shell.space.list("batch/v1/jobs"), 30, "the end of what was made before the refusal")
