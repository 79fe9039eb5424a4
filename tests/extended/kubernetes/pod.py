"""One pod on a node: its containers over all their attempts, and the reports on them to the API server."""

from __future__ import annotations

import http.client
import queue
import signal
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.extended.kubernetes import network
from tests.extended.kubernetes.api import Api, ApiError
from tests.extended.kubernetes.container import Mount, Process, Runtime, now
from tests.extended.kubernetes.inputs import Inputs, NotReady, expand, write_hosts
from tests.extended.kubernetes.rules import Probe, quantity, runs_again
from tests.extended.kubernetes.status import Report, Slot, ready_word

Json = dict[str, Any]
_RETRY = 1.0  # seconds until a failed call of the API server is repeated


class Node(NamedTuple):
    """Facts about the node that a pod needs."""

    api: Api
    name: str
    address: str
    wire: int  # pid of a process in the network namespace that connects the pods
    runtime: Runtime
    folder: Path
    images: dict[str, dict[str, str]]  # image on this node -> its environment


class Pod(threading.Thread):
    """Thread that runs a pod until it is deleted. The watcher of the API server calls `update` and `gone`."""

    def __init__(self, node: Node, pod: Json, address: str, link: str) -> None:
        super().__init__(daemon=True, name=pod["metadata"]["name"])
        self._node = node
        self._pod = pod
        self._at = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._address, self._link = address, link
        self._notes = pod["metadata"].get("annotations") or {}
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.folder = node.folder / "pods" / pod["metadata"]["uid"]
        self._inputs = Inputs(node.api, pod, address, node.address, self.folder)
        spec = pod["spec"]
        self._slots = [Slot(c) for c in spec["containers"]]
        self._policy = spec.get("restartPolicy", "Always")
        self._told: Json = {}
        self._report = Report(pod["metadata"]["uid"], node.address, address)
        self._deadline: float | None = None  # monotonic end of the grace period; None: the pod is not being deleted
        self._gone = False  # the API server has deleted the pod
        self._sandbox: subprocess.Popen[bytes] | None = None

    # --- called by others ------------------------------------------------------------------------------------------

    def update(self, pod: Json) -> None:
        self._events.put(pod)

    def gone(self) -> None:
        self._events.put(None)

    def log(self, container: str, previous: bool) -> Path | None:
        """Return the file of a container's newest attempt, or of the one before if `previous`."""
        slot = next((s for s in self._slots if s.name == container), None)
        attempt = slot.attempts - previous if slot else 0
        return self._log(container, attempt) if attempt > 0 else None

    def runs(self, container: str) -> bool:
        return any(s.name == container and s.running is not None for s in self._slots)

    # --- start and end -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self._pod["metadata"].get("deletionTimestamp"):  # deleted while this node was away: nothing of it runs
            self._bury()
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        network.write_resolver(self.folder, self._pod["metadata"]["namespace"])
        write_hosts(self._pod, self._address, self.folder)
        self._sandbox = subprocess.Popen(
            ["unshare", "--net", "--", "setpriv", "--pdeathsig", "KILL", "--", "sleep", "infinity"],
            start_new_session=True,
        )
        try:
            self._connect(self._sandbox.pid)
            while not self._over():
                self._step()
                self._tell()
                self._take(self._events_until(self._next()))
            self._bury()
        finally:
            for slot in self._slots:
                for attempt in range(1, slot.attempts + 1):
                    self._node.runtime.remove(self._id(slot, attempt))
            self._sandbox.kill()
            self._sandbox.wait()

    def _connect(self, sandbox: int) -> None:
        own = Path("/proc/self/ns/net").stat().st_ino
        while Path(f"/proc/{sandbox}/ns/net").stat().st_ino == own:  # unshare has not made its namespace yet
            time.sleep(0.001)
        while True:
            try:
                network.connect(self._node.wire, sandbox, self._link, self._address)
                return
            except RuntimeError as e:
                self._event("Warning", "FailedCreatePodSandBox", str(e))
                network.remove(self._node.wire, [self._link])
                time.sleep(_RETRY)

    def _over(self) -> bool:
        ending = self._deadline is not None or self._gone
        return ending and all(s.running is None for s in self._slots)

    def _next(self) -> float:
        """Return the monotonic time of the next action that no event announces."""
        times = [s.probe.due for s in self._slots if s.running and s.probe]
        times += [s.start_at for s in self._slots if s.start_at and self._deadline is None]
        times += [s.killed_at for s in self._slots if s.running and s.killed_at is not None]
        return min([time.monotonic() + (10 if self._told == self._status() else _RETRY), *times])

    def _events_until(self, deadline: float) -> list[Any]:
        found = []
        try:
            found.append(self._events.get(timeout=max(0.0, deadline - time.monotonic())))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return found

    def _take(self, events: list[Any]) -> None:
        for event in events:
            if event is None:
                self._gone = True
                self._end_all(0.0)
            elif isinstance(event, tuple):
                self._ended(*event)
            else:
                meta = event["metadata"]
                if self._told and ready_word(event["status"]) != ready_word(self._told):
                    self._told = {}  # the cluster counted the node as lost: report again
                if (meta.get("annotations") or {}) != self._notes:  # a real kubelet also refreshes each minute
                    self._notes = meta.get("annotations") or {}
                    self._refresh()
                if meta.get("deletionTimestamp"):
                    grace = float(meta.get("deletionGracePeriodSeconds") or 0)
                    if self._deadline is None or time.monotonic() + grace < self._deadline:
                        self._deadline = time.monotonic() + grace
                        self._end_all(grace)

    def _refresh(self) -> None:
        try:
            self._inputs.refresh()
        except (NotReady, OSError, ApiError) as e:
            self._event("Warning", "FailedMount", str(e))

    def _step(self) -> None:
        current = time.monotonic()
        for slot in self._slots:
            if slot.running and slot.killed_at is not None and current >= slot.killed_at:
                slot.running.signal(signal.SIGKILL)
                slot.killed_at = None
            due = slot.running is None and slot.start_at is not None and slot.start_at <= current
            if due and self._deadline is None and not self._gone:
                self._start(slot)
            if slot.running and slot.probe and slot.probe.due <= current:
                slot.probe.answered(self._asked(slot.probe.spec), time.monotonic())

    def _start(self, slot: Slot) -> None:
        image = slot.spec["image"]
        if image not in self._node.images:
            message = f'Container image "{image}" is not present'
            slot.state = {"waiting": {"reason": "ErrImageNeverPull", "message": message}}
            self._event("Warning", "ErrImageNeverPull", message)
            slot.start_at = time.monotonic() + 10
            return
        try:
            env = self._inputs.environment(slot.spec, self._node.images[image])
            mounts = self._inputs.mounts(slot.spec)
        except (NotReady, OSError, ApiError) as e:
            slot.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(e)}}
            slot.start_at = time.monotonic() + _RETRY
            return
        slot.attempts += 1
        attempt = slot.attempts
        bundle = self.folder / "bundles" / f"{slot.name}-{attempt}"
        for name in ("hosts", "resolv.conf"):
            mounts.append(Mount(self.folder / name, f"/etc/{name}"))
        path = slot.spec.get("terminationMessagePath", "/dev/termination-log")
        mounts.append(Mount(self._words(slot, attempt), path))
        process = self._process(slot.spec, env)
        hostname = self._pod["spec"].get("hostname") or self._pod["metadata"]["name"]
        assert self._sandbox is not None
        container = self._id(slot, attempt)
        self._node.runtime.bundle(bundle, container, self._sandbox.pid, hostname[:63], process, mounts)
        log = self._log(slot.name, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        slot.running = self._node.runtime.start(container, bundle, log, lambda c: self._events.put((slot, attempt, c)))
        slot.code, slot.start_at = None, None
        if attempt > 1:
            slot.back_off.started(time.monotonic())
        slot.state = {"running": {"startedAt": now()}}
        probe = slot.spec.get("readinessProbe")
        slot.probe = Probe(probe, time.monotonic()) if probe else None

    def _process(self, spec: Json, env: dict[str, str]) -> Process:
        pod = self._pod["spec"].get("securityContext") or {}
        own = {**pod, **(spec.get("securityContext") or {})}
        words = [*(spec.get("command") or []), *(spec.get("args") or [])]
        memory = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        return Process(
            args=[expand(word, env) for word in words],
            env=env,
            cwd=spec.get("workingDir") or env.get("PWD", "/"),
            uid=own.get("runAsUser", 0),
            gid=own.get("runAsGroup", 0),
            read_only_root=own.get("readOnlyRootFilesystem", False),
            no_new_privileges=not own.get("allowPrivilegeEscalation", True),
            memory=quantity(memory) if memory else None,
        )

    def _ended(self, slot: Slot, attempt: int, code: int) -> None:
        if attempt != slot.attempts:
            return
        started = slot.state.get("running", {}).get("startedAt", now())
        times = {"startedAt": started, "finishedAt": now()}
        reason = "Completed" if code == 0 else "Error"
        words = {"message": said} if (said := self._last_words(slot, attempt, code)) else {}
        terminated = {
            "terminated": {
                **{"exitCode": code, "reason": reason, **times, **words},
                "containerID": f"runc://{self._id(slot, attempt)}",
            }
        }
        slot.running, slot.code, slot.state, slot.killed_at = None, code, terminated, None
        if self._deadline is None and not self._gone and runs_again(self._policy, code):
            current = time.monotonic()
            slot.start_at = slot.back_off.start_at(current)
            slot.last = terminated
            if slot.start_at > current:
                wait = f"back-off {slot.start_at - current:.0f}s restarting failed container={slot.name}"
                slot.state = {"waiting": {"reason": "CrashLoopBackOff", "message": wait}}
                self._event("Warning", "BackOff", f"Back-off restarting failed container: {slot.name}")

    def _end_all(self, grace: float) -> None:
        for slot in self._slots:
            slot.start_at = None
            if slot.running:
                self._end(slot, grace)

    @staticmethod
    def _end(slot: Slot, grace: float) -> None:
        if (slot.running and slot.killed_at is None) or grace == 0:
            assert slot.running is not None
            slot.running.signal(signal.SIGTERM if grace else signal.SIGKILL)
            slot.killed_at = time.monotonic() + grace

    def _bury(self) -> None:
        while not self._gone:
            try:
                if self._told:
                    self._tell()
                uid = self._pod["metadata"]["uid"]
                self._node.api.delete(self._at, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
                self._gone = True
            except (ApiError, OSError) as e:
                self._gone = isinstance(e, ApiError) and e.status in (404, 409)
                time.sleep(0 if self._gone else _RETRY)

    def _asked(self, probe: Json) -> bool:
        """Return whether the pod answers its readiness probe, an HTTP request to a numbered port."""
        where, seconds = probe["httpGet"], float(probe.get("timeoutSeconds", 1))
        try:
            address = self._address, int(where["port"])
            connection = http.client.HTTPConnection(*address, timeout=seconds)
            if where.get("scheme") == "HTTPS":  # a kubelet checks no certificate
                connection = http.client.HTTPSConnection(
                    *address, timeout=seconds, context=ssl._create_unverified_context()
                )
            connection.request("GET", where.get("path", "/"))
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False

    # --- reports ---------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        status = self._status()
        if status == self._told or self._gone:
            return
        try:
            self._node.api.patch(
                f"{self._at}/status", {"metadata": {"uid": self._pod["metadata"]["uid"]}, "status": status}
            )
            self._told = status
        except ApiError as e:
            self._gone = self._gone or e.status == 404
        except OSError:
            pass  # `run` tries again

    def _status(self) -> Json:
        return self._report.status(self._slots, self._policy, self._deadline is not None)

    def _event(self, kind: str, reason: str, message: str) -> None:
        meta = self._pod["metadata"]
        names = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        body = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1", **names},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": self._node.name},
            "firstTimestamp": now()[:19] + "Z",
            "lastTimestamp": now()[:19] + "Z",
            "count": 1,
        }
        try:
            self._node.api.post(f"/api/v1/namespaces/{meta['namespace']}/events", body)
        except (OSError, ApiError) as e:
            print(f"an event was lost: {e}", flush=True)

    def _id(self, slot: Slot, attempt: int) -> str:
        return slot.id(self._pod["metadata"]["uid"], attempt)

    def _words(self, slot: Slot, attempt: int) -> Path:
        """Create and return the file of an attempt's termination message."""
        path = self.folder / "words" / f"{slot.name}-{attempt}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)
        return path

    def _last_words(self, slot: Slot, attempt: int, code: int) -> str:
        text = self._words(slot, attempt).read_text("utf-8", "replace")[:4096]
        if text or code == 0 or slot.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return text
        return self._log(slot.name, attempt).read_text("utf-8", "replace")[-2048:]

    def _log(self, container: str, attempt: int) -> Path:
        return self.folder / "logs" / container / f"{attempt}.log"
