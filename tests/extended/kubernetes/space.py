"""A namespace of a cluster, with the queries of tests."""

from __future__ import annotations

import itertools
from typing import Any

from tests.extended.kubernetes.cluster import Cluster
from tests.extended.kubernetes.status import ready_word
from tests.util import wait_for

Json = dict[str, Any]
_numbers = itertools.count(1)


class Space:
    """A namespace of its own, in which pods may be created."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"space-{next(_numbers)}"
        cluster.api.post("/api/v1/namespaces", {"metadata": {"name": self.name}})
        wait_for(self._account, 60, "the service account")

    def list(self, kind: str) -> list[Json]:
        """Return the objects of a kind of the core or, as ``batch/v1/jobs``, of another group."""
        return list(self.cluster.api.get(self.at(kind))["items"])

    def get(self, kind: str, name: str) -> Json:
        return dict(self.cluster.api.get(f"{self.at(kind)}/{name}"))

    def make(self, kind: str, name: str, **fields: Any) -> None:
        self.cluster.api.post(self.at(kind), {"metadata": {"name": name, "labels": {"app": name}}, **fields})

    def delete(self, kind: str, name: str, **options: Any) -> None:
        self.cluster.api.delete(f"{self.at(kind)}/{name}", options or None)

    def pod(self, **labels: str) -> Json | None:
        """Return the newest pod with these labels that is not being deleted, or None."""
        found = [p for p in self.list("pods") if labels.items() <= (p["metadata"].get("labels") or {}).items()]
        alive = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return max(alive, key=lambda p: str(p["metadata"]["creationTimestamp"]), default=None)

    def ready(self, **labels: str) -> Json | None:
        """Return the pod that `pod` finds if it is ready, or None."""
        pod = self.pod(**labels)
        return pod if pod is not None and ready_word(pod["status"]) == "True" else None

    def log(self, pod: str, **query: Any) -> str:
        return str(self.cluster.api.get(f"{self.at('pods')}/{pod}/log", **query))

    def at(self, kind: str) -> str:
        """Return the path of a kind of objects."""
        group, _, plural = kind.rpartition("/")
        return f"/{f'apis/{group}' if group else 'api/v1'}/namespaces/{self.name}/{plural}"

    def _account(self) -> bool:
        return any(a["metadata"]["name"] == "default" and a.get("secrets") for a in self.list("serviceaccounts"))
