"""Changes the number of groups of a running job: decides which Jobs are created and deleted, and what its lighthouse reads.

A ConfigMap holds the list of the job's groups. The lighthouse's pod mounts it as a file, so a pod that replaces it reads
the present list.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.errors import ConfigError
from torchft_x.launch.job.checks import check_groups
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER

Json = dict[str, Any]

FILE = "groups.json"
"""Key of the list of groups in the ConfigMap, and the file's name."""
FOLDER = "/run/torchft_x"
"""Folder in which the lighthouse's pod mounts the ConfigMap."""
_OVER = ("Complete", "Failed")


@dataclass(frozen=True)
class Change:
    """Change of a job to another number of groups."""

    groups: tuple[str, ...]  # ids of all groups after the change
    new: tuple[Json, ...]  # Jobs to create
    going: tuple[str, ...]  # names of Jobs to delete
    before: int  # number of groups before the change
    pods: int  # number of the groups' pods after the change


def text(groups: Iterable[str]) -> str:
    """Return the content of `FILE`."""
    return render(GroupsChanged(tuple(groups)))


def change(app: str, jobs: Sequence[Mapping[str, Any]], wanted: int) -> Change:
    """Return the change to `wanted` groups. `jobs` has all of the job's Jobs, as the API server returns them.

    Raise `ConfigError` if the job can't have that number of groups.
    """
    trainers = [job for job in jobs if names.label_of(job, names.ROLE) == TRAINER]
    _check(app, jobs, trainers, wanted)
    there: dict[int, list[Mapping[str, Any]]] = {}
    for job in trainers:
        there.setdefault(int(names.label_of(job, names.GROUP)), []).append(job)
    pattern = there[min(there)]
    new = [
        replica_job(app, pattern[0], number * len(pattern) + node, number, wanted)
        for number in range(wanted)
        if number not in there
        for node in range(len(pattern))
    ]
    going = [str(job["metadata"]["name"]) for number in sorted(there) if number >= wanted for job in there[number]]
    return Change(tuple(str(n) for n in range(wanted)), tuple(new), tuple(going), len(there), wanted * len(pattern))


def replica_job(app: str, pattern: Mapping[str, Any], replica: int, group: int, groups: int) -> Json:
    """Return the Job of another replica of the pattern's role, ready to be created, with the pattern's owner."""
    metadata, spec = pattern["metadata"], copy.deepcopy(dict(pattern["spec"]))
    for made_there in ("selector", "manualSelector", "suspend"):
        spec.pop(made_there, None)
    own = {names.REPLICA: str(replica), names.GROUP: str(group)}
    role = names.label_of(pattern, names.ROLE)
    name = names.part(app, role, replica)
    pod = spec["template"]
    labels = {n: v for n, v in pod["metadata"]["labels"].items() if n not in _MADE_THERE}
    pod["metadata"] = {**pod["metadata"], "labels": {**labels, **own}}
    pod["metadata"].pop("creationTimestamp", None)
    pod["spec"]["hostname"] = name
    for container in pod["spec"]["containers"]:
        if container["name"] == role:
            container["command"] = _of_groups(container["command"], groups)
    owners = metadata.get("ownerReferences")
    made = {"name": name, "labels": {**metadata["labels"], **own}}
    made |= {"ownerReferences": list(owners)} if owners else {}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec}


_MADE_THERE = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)
"""Labels that the API server adds to a Job's pods."""


def _check(app: str, jobs: Sequence[Mapping[str, Any]], trainers: Sequence[Mapping[str, Any]], wanted: int) -> None:
    if not jobs:
        raise ConfigError(f"there is no job {app}.")
    containers = trainers[0]["spec"]["template"]["spec"]["containers"] if trainers else []
    command = next((c["command"] for c in containers if c["name"] == TRAINER), None)
    lighthouse = next((job for job in jobs if names.label_of(job, names.ROLE) == LIGHTHOUSE), {})
    notes = (lighthouse.get("metadata") or {}).get("annotations") or {}
    if _is_over(lighthouse):
        raise ConfigError(f"the job {app} has ended.")
    check_groups(wanted, least=int(notes.get(names.MINIMUM, 1)), command=command, lighthouse=bool(lighthouse))
    if any(_is_over(job) for job in trainers):
        raise ConfigError("the job is about to end: a group has finished, or was given up.")


def _is_over(job: Mapping[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c.get("type") in _OVER and c.get("status") == "True" for c in conditions)


def _of_groups(words: Sequence[str], groups: int) -> list[str]:
    """Return the command with another value of ``--groups``. The words after ``--`` belong to the script and are kept."""
    end = words.index("--") if "--" in words else len(words)
    return [str(groups) if words[i - 1] == "--groups" and 0 < i < end else word for i, word in enumerate(words)]
