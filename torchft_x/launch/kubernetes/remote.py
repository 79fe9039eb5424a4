"""Client of a job's lighthouse and pods through the API server, so that no port of the cluster must be reachable from here."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

from torchft_x.errors import ConfigError, RefusedError, UnreachableError
from torchft_x.launch.chaos.schedule import Target
from torchft_x.launch.job.states import FAILED, SUCCEEDED
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.handle import parse
from torchft_x.launch.kubernetes.rules import names, state
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER
from torchft_x.launch.kubernetes.rules.pod import TOKEN_KEY
from torchft_x.observe.run.collected import events_in

Json = dict[str, Any]
FAULTS = ("kill", "drain", "supervisor", "lighthouse")
"""Kinds of faults. kill: order to kill the group. drain: delete a pod with its grace period. supervisor, lighthouse: delete a
trainer's or the lighthouse's pod without a grace period."""


class Remote:
    """Client for one job. The constructor makes no connection. It raises `ConfigError`, the methods also `ClusterError`."""

    def __init__(self, handle: str, token: str | None = None) -> None:
        """`token` is the run's; None to read it from the job's Secret for an order."""
        found = parse(handle)
        self._handle = handle
        self.app = found.app
        self.cluster = Cluster(found.context, found.namespace)
        self._token = token
        self.hints: list[str] = []
        """Lines about the job at the last call of `ended`: what to type, and which parts do not run."""

    def ended(self) -> Json | None:
        """Return the job's end in the form of its lighthouse's last event, or None if the job has not ended."""
        found = jobs.find(self.cluster, self.app, why=True)
        if found is None:
            raise ConfigError(f"There is no job {self.app} in the namespace {self.cluster.namespace}.")
        if found.state not in (SUCCEEDED, FAILED):
            advice = found.advice(self._handle)
            self.hints = [*([advice] if advice else []), *(f"waits: {why}" for why in found.waits)]
            return None
        return {"event": "exit", "code": int(found.state == FAILED), "reason": found.reason}

    def overview(self) -> Json:
        """Return the lighthouse's /status.json. Raise `UnreachableError` while no lighthouse serves."""
        status, found = self.cluster.page(names.service(self.app), "/status.json")
        if status != 200 or not isinstance(found, dict):
            raise UnreachableError(f"The lighthouse of {self.app} does not answer ({status}): {_words(found)}")
        return found

    def order(self, kind: str, group: str) -> str:
        """Kill, drain or resume a group. Return the lighthouse's answer, a sentence.

        Raise `RefusedError` or `UnreachableError`.
        """
        token = self._token or self._secret()
        status, found = self.cluster.page(names.service(self.app), f"/{kind}", body={"group": group}, token=token)
        if status == 200 and isinstance(found, dict):
            return str(found.get("done"))
        error = UnreachableError if status in (0, 502, 503, 504) else RefusedError
        raise error(str(found["error"]) if isinstance(found, dict) and "error" in found else _words(found))

    def keep(self, fault: Json) -> None:
        """Write an event of chaos into the anchor, which outlives pods and their logs. `events` reads it there."""
        found = jobs.anchor(self.cluster, self.app)
        if found is None:
            raise ConfigError(f"There is no job {self.app} in the namespace {self.cluster.namespace}.")
        name = f"{names.FAULT}{int(fault['t'] * 1000)}-{fault['number']}"
        note = {name: json.dumps(fault, separators=(",", ":"))}
        self.cluster.patch(found[0], found[1]["name"], {"metadata": {"annotations": note}})

    def events(self) -> Iterator[tuple[str, Json]]:
        """Yield each event in the logs of the job's pods, with the pod's name, previous containers included.

        If there are any, also yield the faults that `keep` wrote, with the name "chaos".
        """
        some = False
        for pod in self.cluster.list("Pod", jobs.of(self.app)):
            for line in jobs.written(self.cluster, pod):
                for event in events_in([line]):
                    some = True
                    yield str(pod["metadata"]["name"]), event
        found = jobs.anchor(self.cluster, self.app) if some else None
        kept = {} if found is None else found[1]["annotations"]
        for event in events_in(text for name, text in kept.items() if name.startswith(names.FAULT)):
            yield "chaos", event

    def _secret(self) -> str:
        data = self.cluster.read("Secret", self.app).get("data") or {}
        try:
            return base64.b64decode(data[TOKEN_KEY]).decode()
        except (KeyError, ValueError):
            raise ConfigError(f"The Secret {self.app} holds no {TOKEN_KEY}; give it with --token_file.") from None


def _words(found: Json | str) -> str:
    return " ".join(str(found).split())[:300].rstrip(".") + "."


def check_faults(kinds: Iterable[str]) -> None:
    """Raise `ConfigError` for a kind of fault that can't be caused from outside a pod."""
    for kind in kinds:
        if kind not in FAULTS:
            raise ConfigError(f"in a cluster there are the faults {', '.join(FAULTS)}; {kind!r} is none of them.")


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
