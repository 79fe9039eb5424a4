"""Faults against the pods of a job, by deleting them and by orders to the job's lighthouse."""

from __future__ import annotations

from collections.abc import Iterable

from torchft_x.errors import ConfigError, RefusedError, UnreachableError
from torchft_x.launch.chaos.schedule import Target
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import ClusterError
from torchft_x.launch.kubernetes.remote import Remote
from torchft_x.launch.kubernetes.rules import names, state
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER

KINDS = ("kill", "drain", "supervisor", "lighthouse")
"""Kinds of faults. kill: order to kill the group. drain: delete a pod with its grace period. supervisor, lighthouse: delete a
trainer's or the lighthouse's pod without a grace period."""


def check(kinds: Iterable[str]) -> None:
    """Raise `ConfigError` for a kind of fault that can't be caused from outside a pod."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"in a cluster there are the faults {', '.join(KINDS)}; {kind!r} is none of them.")


class Pods:
    """`Targets` of a job on Kubernetes: its running pods."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def living(self) -> list[Target]:
        """Return the running pods that can be struck. Raise `ClusterError`."""
        found = []
        for pod in self._remote.cluster.list("Pod", jobs.of(self._remote.app)):
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp") or not state.is_running(pod):
                continue
            labels, name = metadata["labels"], metadata["name"]
            role, group = labels[names.ROLE], labels.get(names.GROUP, "")
            if role == LIGHTHOUSE:
                found.append(Target("lighthouse", "", 0, 0, name))
            elif role == TRAINER:
                found += [Target(kind, group, 0, 0, name) for kind in ("supervisor", "worker")]
        return sorted(found)

    def strike(self, target: Target, kind: str, seconds: float | None = None) -> bool:
        """Cause the fault, and return whether it took effect. Raise `ClusterError`, or `ConfigError` without the token."""
        if kind != "kill":
            return self._remote.cluster.delete("Pod", target.pod, at_once=kind != "drain")
        try:
            self._remote.order("kill", target.group)
        except (RefusedError, UnreachableError):  # no worker of the group runs, or no lighthouse serves
            return False
        except ClusterError as e:
            if e.status not in (0, 503, 504):
                raise
            return False
        return True

    def resume(self, target: Target) -> None:
        """Do nothing: pods can't be stopped."""
