"""A container over all its attempts, and the status of a pod's containers for the API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.extended.kubernetes.container import Running, now
from tests.extended.kubernetes.rules import CrashBackOff, Probe, phase

Json = dict[str, Any]


@dataclass
class Slot:
    """One container of the pod, over all its attempts."""

    spec: Json
    attempts: int = 0
    running: Running | None = None
    code: int | None = None  # exit code of the newest attempt, once it has ended
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    back_off: CrashBackOff = field(default_factory=CrashBackOff)
    start_at: float | None = 0.0  # None: not to be started
    probe: Probe | None = None  # readiness probe, while the container runs
    killed_at: float | None = None  # monotonic time of SIGKILL

    def id(self, uid: str, attempt: int) -> str:
        """Return runc's name of an attempt of this container."""
        return f"{uid}-{self.name}-{attempt}"

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def ready(self) -> bool:
        return self.running is not None and (self.probe is None or self.probe.passes)


def ready_word(status: Json) -> str:
    """Return True, False or Unknown, the readiness of a pod or a node by its status, or '' if the status has none."""
    return next((str(c["status"]) for c in status.get("conditions") or [] if c["type"] == "Ready"), "")


class Report:
    """Builder of one pod's status. Records since when each condition has held."""

    def __init__(self, uid: str, node_address: str, address: str) -> None:
        self._uid = uid
        self._node_address, self._address = node_address, address
        self._began = now()
        self._changed: dict[str, tuple[str, str]] = {}  # condition -> its value, and since when it holds

    def status(self, slots: list[Slot], policy: str, deleted: bool) -> Json:
        """Return the pod's status."""
        ready = all(s.ready for s in slots)
        conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
        return {
            "phase": phase("Never" if deleted else policy, [s.code for s in slots], all(s.attempts for s in slots)),
            "startTime": self._began,
            "hostIP": self._node_address,
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "conditions": [self._condition(k, v) for k, v in conditions.items()],
            "containerStatuses": [self._container_status(s) for s in slots],
        }

    def _condition(self, kind: str, true: bool) -> Json:
        value = "True" if true else "False"
        if self._changed.get(kind, ("", ""))[0] != value:
            self._changed[kind] = (value, now())
        return {"type": kind, "status": value, "lastTransitionTime": self._changed[kind][1]}

    def _container_status(self, slot: Slot) -> Json:
        newest = {"containerID": f"runc://{slot.id(self._uid, slot.attempts)}"} if slot.attempts else {}
        return {
            **newest,
            "name": slot.name,
            "image": slot.spec["image"],
            "imageID": slot.spec["image"],
            "ready": slot.ready,
            "started": slot.running is not None,
            "restartCount": max(slot.attempts - 1, 0),
            "state": slot.state,
            "lastState": slot.last,
        }
