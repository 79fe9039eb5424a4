"""Changes the number of groups of a running job: decides which Jobs are created and deleted, and what its lighthouse reads.

A ConfigMap holds the list of the job's groups. The lighthouse's pod mounts it as a file, so a pod that replaces it reads
the present list.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.errors import ConfigError
from torchft_x.launch.job.checks import check_groups
from torchft_x.launch.job.states import HEALTH_FAILED, OVER
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER
from torchft_x.launch.kubernetes.rules.state import JobState, job_state

Json = dict[str, Any]

FILE = "groups.json"
"""Key of the list of groups in the ConfigMap, and the file's name."""
FOLDER = "/run/torchft_x"
"""Folder in which the lighthouse's pod mounts the ConfigMap."""
_UNHEALTHY = "unhealthy-"
"""Prefix of the ConfigMap's keys that name the nodes on which the health command has failed."""


@dataclass(frozen=True)
class Change:
    """Change of a job to another number of groups."""

    groups: tuple[str, ...]  # ids of all groups after the change
    again: tuple[str, ...]  # those that were given up because of their host: the lighthouse must forget their ends
    others: tuple[str, ...]  # ids of the groups before the change, without `again`
    new: tuple[Json, ...]  # Jobs to create
    going: tuple[str, ...]  # names of Jobs to delete before
    pods: int  # number of the groups' pods after the change
    unhealthy: Mapping[str, str]  # nodes on which the health command has failed, each with the reason


def data(groups: Iterable[str], unhealthy: Mapping[str, str]) -> dict[str, str]:
    """Return the content of the ConfigMap: the groups, and the nodes on which the health command has failed."""
    nodes = {f"{_UNHEALTHY}{node}": why for node, why in unhealthy.items()}
    return {FILE: render(GroupsChanged(tuple(groups))), **nodes}


def change(app: str, jobs: Sequence[Json], pods: Sequence[Json], failed: Mapping[str, str], wanted: int) -> Change:
    """Return the change to `wanted` groups. `jobs` and `pods` are all of the job's, as the API server returns them.

    A group that was given up because its host failed the health command gets new Jobs. `failed` has the lighthouse's
    reasons, by group id: the pods may be gone. Raise `ConfigError` if the job can't have that number of groups.
    """
    found = job_state(app, jobs, pods)
    there = {int(names.label_of(j, names.REPLICA)): j for j in jobs if names.label_of(j, names.ROLE) == TRAINER}
    unhealthy = found.unhealthy
    for part in found.parts:
        if part.state in OVER and failed.get(part.group, "").startswith(HEALTH_FAILED):
            unhealthy.setdefault(part.group, {})
    _check(found, there, wanted, unhealthy)
    pattern = there[min(there)]
    trainers = [part for part in found.parts if part.role == TRAINER]
    sizes = Counter(int(part.group) for part in trainers)
    nodes = max(sizes.values())
    again = [n for n in sorted(sizes) if n < wanted and str(n) in unhealthy]
    new = [
        replica_job(app, pattern, replica, replica // nodes, wanted)
        for replica in range(wanted * nodes)
        if replica not in there or replica // nodes in again
    ]
    leaving = [part for part in trainers if int(part.group) >= wanted or int(part.group) in again]
    return Change(
        groups=tuple(str(n) for n in range(wanted)),
        again=tuple(str(n) for n in again),
        others=tuple(str(n) for n in sorted(sizes) if n not in again),
        new=tuple(new),
        going=tuple(there[part.replica]["metadata"]["name"] for part in leaving),
        pods=wanted * nodes,
        unhealthy={node: why for nodes in unhealthy.values() for node, why in nodes.items()},
    )


def keep_off(job: Json, config: Json) -> Json:
    """Add a required node affinity to the Job, beside the user's own, for the nodes in the ConfigMap. Return the Job.

    Kubernetes wants one requirement for each node, and all of them in each of the alternative terms.
    """
    nodes = [key.removeprefix(_UNHEALTHY) for key in config.get("data") or {} if key.startswith(_UNHEALTHY)]
    if nodes:
        affinity = job["spec"]["template"]["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
        for term in required.setdefault("nodeSelectorTerms", [{}]):
            fields = term.setdefault("matchFields", [])
            rules = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
            fields += [rule for rule in rules if rule not in fields]
    return job


def replica_job(app: str, pattern: Json, replica: int, group: int, groups: int) -> Json:
    """Return the Job of another replica of the pattern's role, ready to be created, with the pattern's owner."""
    metadata = pattern["metadata"]
    spec = {name: value for name, value in copy.deepcopy(pattern["spec"]).items() if name not in _MADE_THERE}
    own = {names.REPLICA: str(replica), names.GROUP: str(group)}
    role = names.label_of(pattern, names.ROLE)
    name = names.part(app, role, replica)
    pod = spec["template"]
    labels = {n: v for n, v in pod["metadata"]["labels"].items() if n not in _MADE_THERE}
    pod["metadata"] = {**pod["metadata"], "labels": {**labels, **own}}
    pod["spec"]["hostname"] = name
    for container in pod["spec"]["containers"]:
        if container["name"] == role:
            container["command"] = _of_groups(container["command"], groups)
    owners = metadata.get("ownerReferences") or []
    made = {"name": name, "labels": {**metadata["labels"], **own}, "ownerReferences": owners}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec}


_MADE_THERE = (
    *("selector", "manualSelector", "suspend"),
    *("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
)
"""Fields of a Job's spec, and labels of its pods, that are the cluster's."""


def _check(found: JobState, there: Mapping[int, Json], wanted: int, unhealthy: Collection[str]) -> None:
    if not found.parts:
        raise ConfigError(f"there is no job {found.app}.")
    if found.state in OVER:
        raise ConfigError(f"the job {found.app} has ended.")
    containers = [c for job in there.values() for c in job["spec"]["template"]["spec"]["containers"]]
    command = next((c["command"] for c in containers if c["name"] == TRAINER), None)
    lighthouse = any(part.role == LIGHTHOUSE for part in found.parts)
    check_groups(wanted, least=found.min_replicas, command=command, lighthouse=lighthouse)
    over: dict[str, set[bool]] = {}
    for part in found.parts:
        over.setdefault(part.group, set()).add(bool(part.group) and part.state in OVER)
    for group, ends in over.items():
        if True in ends and group not in unhealthy:
            raise ConfigError(
                f"the job is about to end: group {group} has finished, or was given up for another reason than --health."
            )
        if ends == {True, False}:
            raise ConfigError(f"group {group} was given up, and some of its pods still end; give the command again.")


def _of_groups(words: Sequence[str], groups: int) -> list[str]:
    """Return the command with another value of ``--groups``. The words after ``--`` belong to the script and are kept."""
    end = words.index("--") if "--" in words else len(words)
    return [str(groups) if words[i - 1] == "--groups" and 0 < i < end else word for i, word in enumerate(words)]
