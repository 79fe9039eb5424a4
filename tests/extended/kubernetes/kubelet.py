"""A small kubelet: a node whose pods are real containers (runc) in real networks, on an image of this machine.

Run as ``python -m tests.extended.kubernetes.kubelet JSON`` in the network namespace of the cluster; `Settings` are the
keys. docs/kubernetes.md#how-it-was-tested lists what it lacks of a real kubelet.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.extended.kubernetes import network
from tests.extended.kubernetes.api import Api, ApiError
from tests.extended.kubernetes.container import Runtime, now
from tests.extended.kubernetes.pod import Node, Pod

Json = dict[str, Any]
PORT = 10250
_RETRY = 0.3  # seconds until an API server that was away is asked again


@dataclass(frozen=True)
class Settings:
    """Settings with which a node is started."""

    name: str
    number: int  # number of the node in the cluster, from 1
    api: list[Any]  # arguments of `Api`
    runc: str
    folder: str
    images: dict[str, dict[str, str]]
    paths: list[str]  # directories of this machine that its images contain
    certificate: list[str]  # certificate and key of the server for logs
    resources: dict[str, str]
    heartbeat: float  # seconds between two heartbeats


class Kubelet:
    """A node: reports that it is ready, and runs the pods that are bound to it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        folder = Path(settings.folder)
        self._api = Api(*settings.api)
        runtime = Runtime(settings.runc, folder / "runc", settings.paths)
        address = network.node_address(settings.number)
        self.node = Node(self._api, settings.name, address, os.getpid(), runtime, folder, settings.images)
        self._pods: dict[str, Pod] = {}  # pods, by uid
        self._newest: dict[tuple[str, str], Pod] = {}  # newest pod, by namespace and name
        self._links = 0

    def run(self) -> None:
        _again(self._register)
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            _again(self._watch)

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._newest.get((namespace, name))

    # --- the node --------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self._settings.name, "kubernetes.io/os": "linux"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._settings.name, "labels": labels}}
        lease = {"metadata": {"name": self._settings.name}, "spec": self._lease()}
        for at, what in (("/api/v1/nodes", node), (_LEASES, lease)):
            try:
                self._api.post(at, what)
            except ApiError as e:
                if e.status != 409:  # 409: the object exists from a previous start
                    raise
        self._say_ready()

    def _say_ready(self) -> None:
        resources = {"cpu": "64", "memory": "64Gi", "pods": "200", **self._settings.resources}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
        quiet = [
            {"type": f"{kind}Pressure", "status": "False", "reason": "KubeletHasSufficient", "lastHeartbeatTime": now()}
            for kind in ("Memory", "Disk", "PID")
        ]
        status = {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": self.node.address}],
            "conditions": [*quiet, {**condition, "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
            "nodeInfo": {"kubeletVersion": "v1.20.2", "operatingSystem": "linux", "architecture": "amd64"},
        }
        self._api.patch(f"/api/v1/nodes/{self._settings.name}/status", {"status": status})

    def _lease(self) -> Json:
        return {"holderIdentity": self._settings.name, "leaseDurationSeconds": 40, "renewTime": now()}

    def _beat(self) -> None:
        beats = 0
        while True:
            time.sleep(self._settings.heartbeat)
            beats += 1
            _again(lambda: self._api.patch(f"{_LEASES}/{self._settings.name}", {"spec": self._lease()}))
            if beats % 5 == 0:
                _again(self._say_ready)

    # --- its pods --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        mine = {"fieldSelector": f"spec.nodeName={self._settings.name}"}
        listed = self._api.get("/api/v1/pods", **mine)
        there = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid in self._pods.keys() - there.keys():
            self._pods.pop(uid).gone()
        for pod in there.values():
            self._seen(pod)
        version = listed["metadata"]["resourceVersion"]
        for event in self._api.watch("/api/v1/pods", resourceVersion=version, **mine):
            uid = event["object"]["metadata"]["uid"]
            if event["type"] != "DELETED":
                self._seen(event["object"])
            elif uid in self._pods:
                self._pods.pop(uid).gone()

    def _seen(self, pod: Json) -> None:
        meta = pod["metadata"]
        if meta["uid"] in self._pods:
            self._pods[meta["uid"]].update(pod)
            return
        if pod["status"].get("phase") in ("Succeeded", "Failed") and not meta.get("deletionTimestamp"):
            return  # the pod has ended in a previous start of this node
        self._links += 1
        number = self._settings.number
        link = f"pod{number}x{self._links}"
        new = Pod(self.node, pod, network.pod_address(number, self._links % 250 + 2), link)
        self._pods[meta["uid"]] = self._newest[meta["namespace"], meta["name"]] = new
        new.start()


_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def _again(what: Callable[[], Any]) -> None:
    """Call `what`, and repeat while the API server is away."""
    while True:
        try:
            what()
            return
        except (OSError, ApiError) as e:
            print(f"asked again in {_RETRY} s: {e!r}", flush=True)
            time.sleep(_RETRY)


def serve_logs(kubelet: Kubelet, address: str, certificate: list[str]) -> None:
    """Serve ``/containerLogs/NAMESPACE/POD/CONTAINER``, which the API server requests for `kubectl logs`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
            words = parts.path.strip("/").split("/")
            pod = kubelet.pod(words[1], words[2]) if words[0] == "containerLogs" and len(words) == 4 else None
            file = pod.log(words[3], query.get("previous") == ["true"]) if pod else None
            if pod is None or file is None:
                self.send_error(404, "no such container, or it never ran")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            options = {name: values[0] for name, values in query.items()}
            alive = (lambda: pod.runs(words[3])) if options.get("follow") == "true" else (lambda: False)
            try:
                for line in _lines(file, options, alive):
                    self.wfile.write(line)
                    self.wfile.flush()
            except OSError:
                pass  # the client has closed the connection

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((address, PORT), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _lines(file: Path, options: dict[str, str], alive: Callable[[], bool]) -> Any:
    """Yield the lines of a log, with or without their times, and those that are added while `alive`."""
    since = time.time() - float(options["sinceSeconds"]) if "sinceSeconds" in options else 0.0
    with open(file, "rb") as lines:
        ended = False
        while True:
            left = lines.readlines()
            for line in left:
                stamp, _, text = line.partition(b" ")
                if not since or _seconds(stamp.decode()) >= since:
                    yield line if options.get("timestamps") == "true" else text
            if left:
                continue
            if ended:
                return
            ended = not alive()  # read once more, for lines written meanwhile
            if not ended:
                time.sleep(0.05)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    network.ip(os.getpid(), f"addr replace {network.node_address(settings.number)}/32 dev lo")
    kubelet = Kubelet(settings)
    serve_logs(kubelet, kubelet.node.address, settings.certificate)
    kubelet.run()


if __name__ == "__main__":
    main()
