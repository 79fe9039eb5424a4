"""What Jobs and pods say of a job; each object as an API server gives it, less what isn't looked at."""

from __future__ import annotations

from typing import Any

from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.state import JobState, job_state, newest

Json = dict[str, Any]


def _labels(role: str, replica: int) -> dict[str, str]:
    group = {names.GROUP: str(replica)} if role == "trainer" else {}
    return {names.ROLE: role, names.REPLICA: str(replica), names.INSTANCE: "a", **group}


def job(role: str, replica: int = 0, end: str = "", **fields: Any) -> Json:
    conditions = [{"type": end, "status": "True", "message": "it had enough"}] if end else []
    note = {} if replica else {names.MINIMUM: "2"}
    metadata = {"name": f"a-{role}-{replica}", "labels": _labels(role, replica), "annotations": note}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}, **fields}


def pod(role: str, replica: int = 0, phase: str = "Running", made: int = 0, **container: Any) -> Json:
    metadata = {"name": f"p-{made}", "uid": str(made), "creationTimestamp": f"2026-11-25T12:00:{made:02d}Z"}
    status = {"phase": phase, "containerStatuses": [{"name": role, "restartCount": 0, **container}]}
    return {"metadata": {**metadata, "labels": _labels(role, replica)}, "spec": {"nodeName": "n"}, "status": status}


RUNS: Json = {"state": {"running": {}}}


def over(code: int, words: str = "") -> Json:
    return {"state": {"terminated": {"exitCode": code, "message": words, "reason": "Error" if code else "Completed"}}}


def poll(jobs: list[Json], pods: list[Json]) -> tuple[str, str]:
    found = job_state("a", jobs, pods)
    return found.state, found.reason


def test_the_lighthouse_speaks_for_the_job() -> None:
    jobs = [job("lighthouse"), job("trainer", 0), job("trainer", 1)]
    pods = [pod("lighthouse", **RUNS), pod("trainer", 0, **RUNS), pod("trainer", 1, **RUNS)]
    assert poll(jobs, pods) == ("RUNNING", "")
    done = job("lighthouse", end="Complete")
    assert poll([done], [pod("lighthouse", phase="Succeeded", **over(0, "All 2 groups finished."))]) == (
        "SUCCEEDED",
        "All 2 groups finished.",
    )
    failed = [pod("lighthouse", phase="Succeeded", **over(0, "failed: group 1 is lost."))]
    assert poll([done, *jobs[1:]], [*failed, *pods[1:]]) == ("FAILED", "group 1 is lost.")
    assert poll([job("lighthouse", end="Failed")], []) == ("FAILED", "it had enough")


def test_without_one_as_many_groups_must_succeed_as_the_job_needs() -> None:
    jobs = [job("trainer", k, end="Complete") for k in range(3)]
    good = [pod("trainer", k, phase="Succeeded", **over(0)) for k in range(2)]
    bad = pod("trainer", 2, phase="Succeeded", **over(0, "failed: too many restarts."))
    assert poll(jobs, [*good, bad])[0] == "SUCCEEDED"
    also = pod("trainer", 1, phase="Succeeded", **over(0, "failed: no data."))
    assert poll(jobs, [good[0], also, bad]) == ("FAILED", "no data.")
    assert poll([*jobs[:2], job("trainer", 2)], [*good, pod("trainer", 2, **RUNS)])[0] == "RUNNING"


def test_a_group_whose_host_was_unhealthy_and_what_to_type() -> None:
    words = "the health command failed (exit code 3) on a-trainer-1: no GPU 3"
    jobs = [job("lighthouse"), job("trainer", 0), job("trainer", 1, end="Complete")]
    pods = [pod("lighthouse", **RUNS), pod("trainer", 0, **RUNS)]
    bad = pod("trainer", 1, phase="Succeeded", **over(0, f"failed: {words}."))
    found = job_state("a", jobs, [*pods, bad])
    assert (found.state, found.unhealthy) == ("RUNNING", {"1": {"n": f"{words}."}})
    assert found.advice("JOB") == "`torchft_x scale --replicas 2 JOB` starts group 1 on another node than n."
    other = pod("trainer", 1, phase="Succeeded", **over(0, "failed: it crashed 5 times."))
    assert job_state("a", jobs, [*pods, other]).advice("JOB") == ""
    assert job_state("a", [job("lighthouse", end="Failed"), *jobs[1:]], [*pods, bad]).advice("JOB") == ""


def test_why_a_part_waits() -> None:
    def reason(**fields: Any) -> str:
        return poll([job("trainer")], [{**pod("trainer"), **fields}])[1]

    def waits(why: str, message: str) -> Json:
        state = {"waiting": {"reason": why, "message": message}}
        return {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}

    assert reason(status=waits("ImagePullBackOff", 'Back-off pulling image "x"')) == (
        'trainer/0: ImagePullBackOff: Back-off pulling image "x"'
    )
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient nvidia.com/gpu."}
    assert reason(status={"phase": "Pending", "conditions": [unscheduled]}) == (
        "trainer/0: no node takes it: 0/2 nodes: Insufficient nvidia.com/gpu."
    )
    assert poll([job("trainer")], []) == ("PENDING", "trainer/0: its pod is not there yet")
    assert reason(status={"phase": "Pending"}) == "trainer/0: its container has not begun since 2026-11-25T12:00:00Z"
    queued = job("trainer", spec={"suspend": True})
    queued["metadata"]["labels"][names.QUEUE] = "team"
    assert poll([queued], []) == ("PENDING", "trainer/0: it waits in the queue team")


def event(kind: str, name: str, reason: str, message: str, when: int) -> Json:
    thing = {"kind": kind, "name": name}
    return {
        "involvedObject": thing,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-25T12:{when:02d}:00Z",
    }


def test_a_part_that_can_not_start_says_what_the_cluster_warns_of() -> None:
    """S7: what `kubectl get events` has."""

    def reason(pods: list[Json], *events: Json) -> str:
        return job_state("a", [job("trainer")], pods, events).reason

    waits = pod("trainer", phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})
    mount = event("Pod", "p-0", "FailedMount", 'MountVolume.SetUp failed for volume "run":\nnot found', 10)
    assert reason([waits], event("Pod", "p-0", "FailedMount", "timed out", 9), mount).endswith(
        '; the cluster warns: MountVolume.SetUp failed for volume "run": not found'
    )
    forbidden = event("Job", "a-trainer-0", "FailedCreate", 'pods "x" is forbidden: violates PodSecurity', 10)
    assert reason([], mount, forbidden).endswith('the cluster warns: pods "x" is forbidden: violates PodSecurity')
    back_off = event("Pod", "p-0", "BackOff", "Back-off restarting failed container", 11)
    known = event("Pod", "p-0", "Failed", "Error: ImagePullBackOff", 12)
    assert reason([waits], mount, back_off, known) == reason([waits], mount)
    runs = pod("trainer", **RUNS)
    assert reason([runs], mount) == ""  # it has begun


def test_a_job_runs_when_a_trainer_does() -> None:
    """S7: it was RUNNING while all trainers were PENDING."""
    jobs, waits = [job("lighthouse"), job("trainer")], pod("trainer", phase="Pending")
    serves = pod("lighthouse", **RUNS, ready=True)
    assert poll(jobs, [serves, waits])[0] == "PENDING"
    begins = pod("trainer", **RUNS, ready=False)
    assert poll(jobs, [serves, begins]) == ("PENDING", "trainer/0: its container runs and is not ready")
    assert poll(jobs, [serves, pod("trainer", **RUNS, ready=True)])[0] == "RUNNING"
    assert poll([job("lighthouse")], [serves])[0] == "RUNNING"


def test_the_newest_pod_counts_and_the_others_are_restarts() -> None:
    first, second = pod("trainer", phase="Failed", made=1, **over(1)), pod("trainer", made=2, **RUNS)
    second["status"]["containerStatuses"][0]["restartCount"] = 3
    found: JobState = job_state("a", [job("trainer")], [second, first])
    assert (found.parts[0].state, found.parts[0].restarts) == ("RUNNING", 4)
    second["metadata"]["deletionTimestamp"] = "2026-11-25T12:01:00Z"
    assert newest([first, second]) is first
