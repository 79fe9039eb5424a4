"""Which Jobs come and go with another number of groups; Jobs as an API server gives them, less what isn't looked at."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.pod import REPLICA
from torchft_x.launch.kubernetes.rules.scale import change

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


def _jobs(replicas: int = 2, nodes: int = 1, **more: Any) -> list[Json]:
    return [_job("lighthouse", 0), *(_job("trainer", k, nodes, **more) for k in range(replicas))]


def test_a_group_more_is_a_job_like_the_others_with_its_own_number() -> None:
    made = change("a-1", _jobs(2), 3)
    assert (made.groups, made.going, made.before) == (("0", "1", "2"), (), 2)
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
    assert [j["metadata"]["name"] for j in change("a-1", _jobs(4, 2), 3).new] == ["a-1-trainer-4", "a-1-trainer-5"]
    fewer = change("a-1", _jobs(6, 2), 2)
    assert (fewer.groups, fewer.new, fewer.before) == (("0", "1"), (), 3)
    assert fewer.going == ("a-1-trainer-4", "a-1-trainer-5")


def test_a_gap_is_filled_and_nothing_happens_twice() -> None:
    assert [j["metadata"]["name"] for j in change("a-1", _without(1), 3).new] == ["a-1-trainer-1"]
    same = change("a-1", _jobs(2), 2)
    assert (same.new, same.going) == ((), ())


def _without(replica: int) -> list[Json]:
    return [j for j in _jobs(3) if j["metadata"]["name"] != f"a-1-trainer-{replica}"]


def test_what_a_job_can_not_have() -> None:
    over = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    refused = [
        ([], 2, "there is no job a-1"),
        (_jobs(2), 1, r"between 2 \(the job's --min_replicas\) and 4096"),
        (_jobs(2), 5000, "between 2"),
        ([_job("trainer", 0)], 2, "not its own"),
        ([_job("lighthouse", 0)], 2, "has no replica groups"),
        ([_job("lighthouse", 0, **over), _job("trainer", 0)], 2, "has ended"),
        ([_job("lighthouse", 0), _job("trainer", 0, **over)], 2, "about to end"),
        ([_job("lighthouse", 0), _job("trainer", 0, words=["--workers", "1,2"])], 2, "differ in size"),
    ]
    for jobs, wanted, sentence in refused:
        with pytest.raises(ConfigError, match=sentence):
            change("a-1", jobs, wanted)
