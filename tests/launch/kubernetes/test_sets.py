"""Groups as JobSets: the objects against JobSet's own definition and Kubernetes' schemas, and what is asked of a cluster."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.core.kubernetes.test_sets import _made, _set
from tests.kubernetes.jobsets import DEFINITION
from tests.launch.kubernetes.answering import Asked, answering
from tests.launch.kubernetes.test_app import EVERYTHING, VERSIONS, hsdp, render
from torchft_x import env
from torchft_x.core.kubernetes import rights
from torchft_x.core.kubernetes.objects import owned
from torchft_x.core.kubernetes.parts import Wishes
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError

Json = dict[str, Any]
SETS = "/apis/jobset.x-k8s.io/v1alpha2"
NODES = {"nodes_per_replica": 2, "workers_per_replica": 2, "gpu": 1}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    for name in (env.TOKEN, env.TOKEN_FILE, env.LIGHTHOUSE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "kubeconfig"


def _grouped(wishes: Wishes = Wishes(), **parameters: Any) -> list[Json]:  # noqa: B008  immutable
    return render(hsdp(**{**NODES, **parameters}), replace(wishes, backend="jobset"))


def _strict(schema: Any) -> Any:
    """A definition's schema as one that JSON Schema's rules take, and that knows no other fields than those it names."""
    if isinstance(schema, list):
        return [_strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    found = {k: _strict(v) for k, v in schema.items() if not k.startswith("x-")}
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {k: _strict(v) for k, v in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found = {"type": ["integer", "string"]}
    return found


@pytest.fixture(scope="module")
def definition() -> jsonschema.Draft7Validator:
    (version,) = json.loads(DEFINITION.read_text())["spec"]["versions"]
    schema = _strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(schema)


def test_all_groups_fit_the_definition_and_their_jobs_the_schemas(
    cluster: Path, definition: jsonschema.Draft7Validator
) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    every: list[Json] = [{}, {"lighthouse": "http://10.0.0.1:29510"}]
    for parameters, wishes in itertools.product(every, (Wishes(), EVERYTHING)):
        objects = _grouped(wishes, **parameters)
        sets = [o for o in owned(objects, {"metadata": {"name": "x", "uid": "1"}}) if o["kind"] == "JobSet"]
        assert len(sets) == 2
        for found in sets:
            definition.validate(found)
            for replicated in found["spec"]["replicatedJobs"]:
                template = replicated["template"]
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": template["spec"]}
                for version in VERSIONS:
                    validate(job, version, strict=True)
    wrong = json.loads(json.dumps(sets[0]))
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostnam"] = "x"
    assert not definition.is_valid(wrong)
    assert not definition.is_valid({**sets[0], "spec": {**sets[0]["spec"], "failurePolicy": {"maxRestarts": "1"}}})


def test_the_pods_are_the_same_with_both_backends(cluster: Path) -> None:
    def pods(objects: list[Json]) -> list[Json]:
        alone = [o for o in objects if o["kind"] == "Job"]
        inner = [r["template"] for o in objects if o["kind"] == "JobSet" for r in o["spec"]["replicatedJobs"]]
        return [o["spec"]["template"] for o in [*alone, *inner]]

    app = hsdp(**NODES)  # a job's port is its own
    plain, grouped = render(app, EVERYTHING), render(app, replace(EVERYTHING, backend="jobset"))
    assert pods(plain) == pods(grouped)
    limits = [r["template"]["spec"]["backoffLimit"] for o in grouped[-2:] for r in o["spec"]["replicatedJobs"]]
    assert limits == [1_000_000] * 4
    assert [o["kind"] for o in grouped if o["kind"] in ("Job", "JobSet")] == ["Job", "JobSet", "JobSet"]
    assert grouped[0]["metadata"]["annotations"]["torchft-x/backend"] == "jobset"


def test_the_longest_names_of_a_set_s_jobs_are_ones_that_kubernetes_takes(cluster: Path) -> None:
    objects = _grouped(name="x" * 80, replicas=2)
    name = objects[-1]["metadata"]["name"].removesuffix("-1") + "-4095-n999-0"
    assert len(name) <= 63


def test_an_option_that_is_none() -> None:
    with pytest.raises(ConfigError, match="-cfg backend=volcano: it must be job or jobset"):
        Wishes(backend="volcano")


def test_nothing_is_made_where_there_are_no_sets(cluster: Path) -> None:
    with answering(lambda _: (404, "404 page not found"), cluster) as asked:
        with pytest.raises(ConfigError, match=r"knows no JobSets .* use backend=job"):
            jobs.submit(Cluster(), _grouped())
        assert [(a.method, a.path) for a in asked] == [("GET", SETS)]
    refused = {"kind": "Status", "message": "forbidden"}
    with answering(lambda _: (403, refused), cluster), pytest.raises(ClusterError):
        jobs.submit(Cluster(), _grouped())


def test_a_refused_set_removes_what_was_made_and_names_the_rule(cluster: Path) -> None:
    said = 'jobsets is forbidden: User "me" cannot create resource "jobsets" in API group "jobset.x-k8s.io" in the namespace'

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.method == "GET":
            return 200, {"resources": []}
        if asked.path == f"{SETS}/namespaces/team/jobsets":
            return 403, {"kind": "Status", "message": said}
        return 200, {"metadata": {"name": "a-1-lighthouse-0", "uid": "u"}}

    with answering(answer, cluster) as asked, pytest.raises(ClusterError, match="needs the rule") as e:
        jobs.submit(Cluster(), _grouped())
    assert rights.line("jobset.x-k8s.io", "jobsets", "create") in str(e.value)
    assert (asked[-1].method, asked[-2].path) == ("DELETE", f"{SETS}/namespaces/team/jobsets")
    assert asked[-2].body["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_only_a_job_that_has_sets_is_asked_for_them(cluster: Path) -> None:
    held: dict[str, list[Json]] = {"jobs": [_made(0, 0)], "jobsets": [_set(0)]}

    def answer(asked: Asked) -> tuple[int, Any]:
        return 200, {"items": held.get(asked.path.partition("?")[0].rpartition("/")[2], [])}

    def kinds(asked: list[Asked]) -> list[str]:
        return [a.path.partition("?")[0].rpartition("/")[2] for a in asked]

    with answering(answer, cluster) as asked:
        found = jobs.find(Cluster(), "a-1")
        assert found is not None
        assert [part.replica for part in found.parts] == [0, 1]  # one of them is only planned
        assert kinds(asked) == ["jobs", "jobsets", "pods"]
    held["jobs"] = []  # nothing but its anchor, a Service, says that there are some
    held["services"] = [{"metadata": {"name": "a-1", "annotations": {"torchft-x/backend": "jobset"}}}]
    with answering(answer, cluster) as asked:
        assert jobs.find(Cluster(), "a-1") is not None
        assert kinds(asked) == ["jobs", "services", "jobsets", "pods"]
    held["services"] = []
    with answering(answer, cluster) as asked:
        assert jobs.find(Cluster(), "a-1") is None
        assert kinds(asked) == ["jobs", "services"]
    with answering(answer, cluster) as asked:
        assert Cluster().delete("JobSet", "a-1-trainer-0")
        assert (asked[0].method, asked[0].path.partition("?")[0]) == (
            "DELETE",
            f"{SETS}/namespaces/team/jobsets/a-1-trainer-0",
        )
