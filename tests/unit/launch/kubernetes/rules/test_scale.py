"""Which Jobs come and go with another number of groups; Jobs as an API server gives them, less what isn't looked at."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.pod import REPLICA
from torchft_x.launch.kubernetes.rules.scale import change, data, keep_off

Json = dict[str, Any]


def _job(role: str, replica: int, nodes: int = 1, words: list[str] | None = None, **more: Any) -> Json:
    group = {names.GROUP: str(replica // nodes)} if role == "trainer" else {}
    labels = {names.INSTANCE: "a-1", names.ROLE: role, names.REPLICA: str(replica), **group}
    command = ["python", "supervise", "--replica", f"$({REPLICA})", "--groups", "2"]
    command = [*command, *(words or ["--workers", "1"]), "--", "train.py", "--groups", "7"]
    container = {"name": role, "command": command, "env": [{"name": REPLICA}]}
    template = {
        "metadata": {"labels": {**labels, "controller-uid": "u", "job-name": "j"}, "creationTimestamp": None},
        "spec": {"hostname": f"a-1-{role}-{replica}", "containers": [container]},
    }
    metadata = {
        "name": f"a-1-{role}-{replica}",
        "labels": labels,
        "uid": "x",
        "annotations": {names.MINIMUM: "2"} if role == "lighthouse" else {},
        "ownerReferences": [{"name": "a-1-lighthouse-0"}],
    }
    spec = {"selector": {"matchLabels": {"controller-uid": "u"}}, "backoffLimit": 5, "template": template}
    return {"metadata": metadata, "spec": spec, "status": {}, **more}


OVER = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
BAD = "the health command failed (exit code 3) on a-1-trainer-1: no GPU 3"


def _ended(replica: int, words: str, node: str = "n2") -> Json:
    """The pod of a Job that is over."""
    labels = {names.ROLE: "trainer", names.REPLICA: str(replica)}
    end = {"name": "trainer", "state": {"terminated": {"exitCode": 0, "message": words}}}
    status = {"phase": "Succeeded", "containerStatuses": [end]}
    metadata = {"name": f"p{replica}", "labels": labels, "creationTimestamp": "2026-11-25T11:00:00Z"}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": status}


def _jobs(replicas: int = 2, nodes: int = 1, **more: Any) -> list[Json]:
    return [_job("lighthouse", 0), *(_job("trainer", k, nodes, **more) for k in range(replicas))]


def test_a_group_more_is_a_job_like_the_others_with_its_own_number() -> None:
    made = change("a-1", _jobs(2), [], {}, 3)
    assert (made.groups, made.going, made.others) == (("0", "1", "2"), (), ("0", "1"))
    (job,) = made.new
    assert job["metadata"]["name"] == "a-1-trainer-2"
    assert job["metadata"]["ownerReferences"] == [{"name": "a-1-lighthouse-0"}]
    assert "uid" not in job["metadata"]
    assert job["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"]
    assert (job["metadata"]["labels"][names.REPLICA], job["metadata"]["labels"][names.GROUP]) == ("2", "2")
    assert "selector" not in job["spec"]
    pod = job["spec"]["template"]["spec"]
    assert (pod["hostname"], pod["containers"][0]["command"][4:6]) == ("a-1-trainer-2", ["--groups", "3"])
    assert pod["containers"][0]["command"][-1] == "7"  # the script's own


def test_a_group_over_nodes_comes_and_goes_as_a_whole() -> None:
    assert [j["metadata"]["name"] for j in change("a-1", _jobs(4, 2), [], {}, 3).new] == [
        "a-1-trainer-4",
        "a-1-trainer-5",
    ]
    fewer = change("a-1", _jobs(6, 2), [], {}, 2)
    assert (fewer.groups, fewer.new, fewer.others) == (("0", "1"), (), ("0", "1", "2"))
    assert fewer.going == ("a-1-trainer-4", "a-1-trainer-5")


def test_a_gap_is_filled_and_nothing_happens_twice() -> None:
    assert [j["metadata"]["name"] for j in change("a-1", _without(1), [], {}, 3).new] == ["a-1-trainer-1"]
    assert [j["metadata"]["name"] for j in change("a-1", _jobs(3, 2), [], {}, 2).new] == ["a-1-trainer-3"]
    same = change("a-1", _jobs(2), [], {}, 2)
    assert (same.new, same.going) == ((), ())


def _without(replica: int) -> list[Json]:
    return [j for j in _jobs(3) if j["metadata"]["name"] != f"a-1-trainer-{replica}"]


def test_what_a_job_can_not_have() -> None:
    refused = [
        ([], 2, "there is no job a-1"),
        (_jobs(2), 1, r"between 2 \(the job's --min_replicas\) and 4096"),
        (_jobs(2), 5000, "between 2"),
        ([_job("trainer", 0)], 2, "not its own"),
        ([_job("lighthouse", 0)], 2, "has no replica groups"),
        ([_job("lighthouse", 0, **OVER), _job("trainer", 0)], 2, "has ended"),
        ([_job("lighthouse", 0), _job("trainer", 0, **OVER)], 2, "about to end"),
        ([_job("lighthouse", 0), _job("trainer", 0, words=["--workers", "1,2"])], 2, "differ in size"),
    ]
    for jobs, wanted, sentence in refused:
        with pytest.raises(ConfigError, match=sentence):
            change("a-1", jobs, [], {}, wanted)


def test_a_group_that_was_given_up_because_of_its_host_is_made_again_without_that_node() -> None:
    jobs = [*_jobs(1), _job("trainer", 1, **OVER)]
    made = change("a-1", jobs, [_ended(1, f"failed: {BAD}.")], {}, 2)
    assert (made.groups, made.again, made.others) == (("0", "1"), ("1",), ("0",))
    assert (made.going, [job["metadata"]["name"] for job in made.new]) == (("a-1-trainer-1",), ["a-1-trainer-1"])
    assert data(made.others, made.unhealthy) == {
        "groups.json": '{"groups": ["0"], "ended": []}',
        "unhealthy-n2": f"{BAD}.",
    }
    # it leaves instead, and later groups avoid the node
    jobs[0]["metadata"]["annotations"] = {}
    fewer = change("a-1", jobs, [_ended(1, f"failed: {BAD}")], {}, 1)
    assert (fewer.again, fewer.new, fewer.going) == ((), (), ("a-1-trainer-1",))
    assert "unhealthy-n2" in data(fewer.groups, fewer.unhealthy)


def test_all_nodes_of_a_group_are_made_again_when_all_have_ended() -> None:
    jobs = [*_jobs(2, 2), *(_job("trainer", k, 2, **OVER) for k in (2, 3))]
    pods = [_ended(2, f"failed: {BAD}"), _ended(3, f"failed: node 0 stopped: {BAD}", "n3")]
    made = change("a-1", jobs, pods, {}, 2)
    assert (made.again, made.going) == (("1",), ("a-1-trainer-2", "a-1-trainer-3"))
    assert list(made.unhealthy) == ["n2"]
    interrupted = change("a-1", [*jobs[:3], jobs[-1]], pods[1:], {"1": BAD}, 2)
    assert [j["metadata"]["name"] for j in interrupted.new] == ["a-1-trainer-2", "a-1-trainer-3"]
    assert interrupted.going == ("a-1-trainer-3",)
    jobs[-1]["status"] = {}
    with pytest.raises(ConfigError, match="group 1 was given up, and some of its pods still end"):
        change("a-1", jobs, pods, {}, 2)


def test_the_lighthouse_knows_why_a_group_was_given_up_when_its_pods_are_gone() -> None:
    jobs = [*_jobs(1), _job("trainer", 1, **OVER)]
    made = change("a-1", jobs, [], {"1": BAD}, 2)
    assert (made.again, made.going, made.unhealthy) == (("1",), ("a-1-trainer-1",), {})
    waits = change("a-1", _jobs(2), [], {"1": BAD}, 2)  # for its new pod: the lighthouse still shows the end
    assert (waits.again, waits.going, waits.new) == ((), (), ())
    with pytest.raises(ConfigError, match="for another reason"):
        change("a-1", jobs, [], {"1": "it crashed 5 times"}, 2)


@pytest.mark.parametrize("words", ["", "failed: it crashed 5 times"])
def test_a_group_that_ended_otherwise_is_not_made_again(words: str) -> None:
    jobs = [*_jobs(1), _job("trainer", 1, **OVER)]
    with pytest.raises(ConfigError, match="group 1 has finished, or was given up for another reason"):
        change("a-1", jobs, [_ended(1, words)], {}, 2)


def test_nodes_are_avoided_beside_what_the_users_overlay_asks_for() -> None:
    def terms(spec: Json, *nodes: str) -> Any:
        config = {"data": {"groups.json": "", **{f"unhealthy-{node}": "why" for node in nodes}}} if nodes else {}
        job = keep_off({"spec": {"template": {"spec": spec}}}, config)
        affinity = job["spec"]["template"]["spec"].get("affinity")
        return affinity and affinity["nodeAffinity"][required]["nodeSelectorTerms"]

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    n1, n2 = ({"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2"))
    assert terms({}) is None
    assert terms({}, "n2", "n1") == [{"matchFields": [n1, n2]}]
    pool = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpus"]}]}
    given = {
        "affinity": {
            "podAffinity": {},
            "nodeAffinity": {required: {"nodeSelectorTerms": [pool, {"matchFields": [n1]}]}},
        }
    }
    assert terms(given, "n1", "n2") == [{**pool, "matchFields": [n1, n2]}, {"matchFields": [n1, n2]}]
    assert terms(given, "n1", "n2") == terms(given)
