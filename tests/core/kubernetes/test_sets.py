"""A group as a JobSet: made of its Jobs, read as its Jobs, and another number of them."""

from __future__ import annotations

from typing import Any

from tests.core.kubernetes.test_scale import _job, _jobs
from tests.core.kubernetes.test_state import RUNS, pod
from torchft_x.core.kubernetes import names
from torchft_x.core.kubernetes.scale import change
from torchft_x.core.kubernetes.sets import as_jobs, is_marked, of_group
from torchft_x.core.kubernetes.state import job_state

Json = dict[str, Any]


def _set(group: int, nodes: int = 2, queue: str = "", **more: Any) -> Json:
    members = [_job("trainer", group * nodes + node, nodes) for node in range(nodes)]
    for member in members:
        member["metadata"]["labels"][names.QUEUE] = queue
    made = of_group("a-1", str(group), members, queue)
    made["metadata"]["ownerReferences"] = [{"name": "a-1-lighthouse-0"}]
    made["spec"] |= more.pop("spec", {})
    return {**made, **more}


def _made(group: int, node: int, **more: Any) -> Json:
    """The Job of a node, as the JobSet controller makes it."""
    found = _job("trainer", group * 2 + node, 2, **more)
    found["metadata"] |= {"name": f"a-1-trainer-{group}-n{node}-0"}
    found["metadata"]["labels"] = {**found["metadata"]["labels"], names.SET: f"a-1-trainer-{group}"}
    return found


def _parts(jobs: list[Json], sets: list[Json], pods: list[Json]) -> list[tuple[str, str, int]]:
    found = job_state("a-1", as_jobs(jobs, sets), pods)
    return [(p.state, p.reason, p.restarts) for p in found.parts if p.role == "trainer"]


def test_a_set_has_a_job_for_each_node_and_only_the_set_waits_in_a_queue() -> None:
    made = _set(1, queue="team")
    assert (made["metadata"]["name"], made["metadata"]["labels"][names.QUEUE]) == ("a-1-trainer-1", "team")
    assert names.REPLICA not in made["metadata"]["labels"]
    templates = [replicated["template"] for replicated in made["spec"]["replicatedJobs"]]
    assert [t["metadata"]["labels"][names.REPLICA] for t in templates] == ["2", "3"]
    assert not any(names.QUEUE in t["metadata"]["labels"] for t in templates)
    assert [t["spec"]["template"]["spec"]["hostname"] for t in templates] == ["a-1-trainer-2", "a-1-trainer-3"]
    assert made["spec"]["failurePolicy"] == {"maxRestarts": 1_000_000}
    with_ttl = _job("trainer", 0)
    with_ttl["spec"]["ttlSecondsAfterFinished"] = 60
    spec = of_group("a-1", "0", [with_ttl], "")["spec"]
    assert spec["ttlSecondsAfterFinished"] == 60
    assert "ttlSecondsAfterFinished" not in spec["replicatedJobs"][0]["template"]["spec"]


def test_jobs_that_are_not_made_yet_are_seen_and_why() -> None:
    assert (
        _parts([], [_set(0)], [])
        == [("PENDING", "the JobSet a-1-trainer-0 has made no Job yet (kubectl describe jobset says why)", 0)] * 2
    )
    waits = _set(0, queue="team", spec={"suspend": True})
    assert _parts([], [waits], []) == [("PENDING", "it waits in the queue team", 0)] * 2
    suspended = [_made(0, node) for node in (0, 1)]
    assert _parts(suspended, [waits], []) == [("PENDING", "it waits in the queue team", 0)] * 2


def test_what_a_set_has_made_again_is_a_restart_and_its_end_is_its_jobs() -> None:
    jobs = [_made(0, node) for node in (0, 1)]
    pods = [pod("trainer", replica, **RUNS) for replica in (0, 1)]
    assert _parts(jobs, [_set(0, status={"restarts": 2})], pods) == [("RUNNING", "", 2)] * 2
    over = {"conditions": [{"type": "Failed", "status": "True", "message": "too many"}]}
    assert [state for state, *_ in _parts([], [_set(0, status=over)], [])] == ["FAILED"] * 2
    going = {"conditions": [{"type": "Failed", "status": "False"}]}
    assert _parts(jobs, [_set(0, status=going)], pods) == [("RUNNING", "", 0)] * 2


def test_who_has_sets() -> None:
    assert is_marked(_made(0, 0))
    assert is_marked({"metadata": {"annotations": {names.BACKEND: "jobset"}}})
    assert not any(is_marked(job) for job in _jobs(2))


def test_a_group_more_is_a_set_like_the_others_with_its_own_numbers() -> None:
    jobs = [_job("lighthouse", 0), *(_made(group, node) for group in (0, 1) for node in (0, 1))]
    groups = [_set(group, queue="team", spec={"suspend": True}, status={"restarts": 1}) for group in (0, 1)]
    made = change("a-1", jobs, 3, groups)
    assert (made.kind, made.groups, made.going, made.before) == ("JobSet", ("0", "1", "2"), (), 2)
    (new,) = made.new
    assert new.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert new["metadata"]["name"] == "a-1-trainer-2"
    assert new["metadata"]["ownerReferences"] == [{"name": "a-1-lighthouse-0"}]
    assert new["metadata"]["labels"] == {**groups[0]["metadata"]["labels"], names.GROUP: "2"}
    assert "suspend" not in new["spec"]  # it waits for its own room
    first, second = (replicated["template"] for replicated in new["spec"]["replicatedJobs"])
    for template, replica in ((first, "4"), (second, "5")):
        for labels in (template["metadata"]["labels"], template["spec"]["template"]["metadata"]["labels"]):
            assert (labels[names.REPLICA], labels[names.GROUP]) == (replica, "2")
        pod_spec = template["spec"]["template"]["spec"]
        assert pod_spec["hostname"] == f"a-1-trainer-{replica}"
        assert pod_spec["containers"][0]["command"][4:6] == ["--groups", "3"]
    assert groups[0]["spec"]["replicatedJobs"][0]["template"]["metadata"]["labels"][names.GROUP] == "0"
    fewer = change("a-1", jobs, 2, [*groups, _set(2)])
    assert (fewer.new, fewer.going, fewer.before) == ((), ("a-1-trainer-2",), 3)
