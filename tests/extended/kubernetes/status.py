"""A container over all its lives, and what the API server is told of a pod's containers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.extended.kubernetes.container import Running, now
from tests.extended.kubernetes.rules import CrashBackOff, Probe, phase

Json = dict[str, Any]


@dataclass
class Slot:
    """One container of the pod, over all its lives."""

    spec: Json
    lives: int = 0
    running: Running | None = None
    code: int | None = None  # of the newest life, once it has ended
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    back_off: CrashBackOff = field(default_factory=CrashBackOff)
    start_at: float | None = 0.0  # None: not to be started
    probe: Probe | None = None  # of its readiness, while it runs
    killed_at: float | None = None  # when the rest of it is killed

    def id(self, uid: str, life: int) -> str:
        """What runc calls a life of it."""
        return f"{uid}-{self.name}-{life}"

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def ready(self) -> bool:
        return self.running is not None and (self.probe is None or self.probe.passes)


def ready_word(status: Json) -> str:
    """True, False or Unknown, as the status of a pod or a node says whether it is ready; empty: it says nothing."""
    return next((str(c["status"]) for c in status.get("conditions") or [] if c["type"] == "Ready"), "")


class Report:
    """Makes the status of one pod, and remembers since when each condition has been so."""

    def __init__(self, uid: str, node_address: str, address: str) -> None:
        self._uid = uid
        self._node_address, self._address = node_address, address
        self._began = now()
        self._changed: dict[str, tuple[str, str]] = {}  # of each condition: its value, and since when

    def status(self, slots: list[Slot], policy: str, deleted: bool) -> Json:
        """The pod's status."""
        ready = all(s.ready for s in slots)
        conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
        return {
            "phase": phase("Never" if deleted else policy, [s.code for s in slots], all(s.lives for s in slots)),
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
        life = {"containerID": f"runc://{slot.id(self._uid, slot.lives)}"} if slot.lives else {}
        return {
            **life,
            "name": slot.name,
            "image": slot.spec["image"],
            "imageID": slot.spec["image"],
            "ready": slot.ready,
            "started": slot.running is not None,
            "restartCount": max(slot.lives - 1, 0),
            "state": slot.state,
            "lastState": slot.last,
        }
