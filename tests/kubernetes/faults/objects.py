"""A job as plain objects: a batch/v1 Job of one pod per group, a lighthouse behind a service, a secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.kubernetes.cluster import IMAGE

Json = dict[str, Any]
PORT = 29510
GROUP = "torchft-x/group"  # label
TOLERATION = 1  # seconds that a group stays on a node which is not ready

_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION}
    for k in ("not-ready", "unreachable")
]


class TrainingJob:
    """The objects of one job, in the order in which they are made. `folder`: shared by all nodes, for what is looked at
    afterwards; the job itself needs none.
    """

    def __init__(
        self, name: str, token: str, folder: str, groups: int, arguments: Sequence[str], limits: dict[str, str]
    ) -> None:
        self.name = name
        self.groups = groups
        self._token, self._folder, self._arguments = token, folder, list(arguments)
        self._limits = limits  # of each group's pod

    def common(self) -> list[tuple[str, Json]]:
        name = self.name
        port = [{"port": PORT}]
        selector = {"app": name, "role": "lighthouse"}
        command = ["python", "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", f"0.0.0.0:{PORT}"]
        command += ["--join_timeout_ms", "10000", "--token_file", "/run/token/token", "--advertise_host", "$(POD_IP)"]
        command += ["--state_file", "/run/state/state", "--run_dir", self._folder]
        spec = self._pod("lighthouse", command, "Always")
        spec["volumes"].append(
            {"name": "state", "hostPath": {"path": f"{self._folder}/state", "type": "DirectoryOrCreate"}}
        )
        spec["containers"][0]["volumeMounts"].append({"name": "state", "mountPath": "/run/state"})
        probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 1}
        spec["containers"][0]["readinessProbe"] = probe
        deployment = {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector}, "spec": spec},
        }
        return [
            ("secrets", _named(name, stringData={"token": self._token})),
            ("services", _named(f"{name}-lighthouse", spec={"selector": selector, "ports": port})),
            ("apps/v1/deployments", _named(f"{name}-lighthouse", spec=deployment)),
        ]

    def group(self, number: int) -> tuple[str, Json]:
        command = ["python", "-m", "torchft_x", "supervise", "--group", str(number), "--groups", str(self.groups)]
        command += ["--run_dir", self._folder, "--", "scripts/train_ddp.py", *self._arguments]
        labels = {"app": self.name, "role": "trainer", GROUP: str(number)}
        spec = self._pod("trainer", command, "OnFailure")
        spec["containers"][0]["resources"] = {"limits": self._limits}
        template = {"metadata": {"labels": labels}, "spec": spec}
        name = f"{self.name}-{number}"
        return "batch/v1/jobs", _named(name, spec={"backoffLimit": 1000, "template": template})

    def _pod(self, role: str, command: list[str], policy: str) -> Json:
        env = [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "TORCHFT_X_ADVERTISE_HOST", "value": "$(POD_IP)"},
            {"name": "TORCHFT_LIGHTHOUSE", "value": f"http://{self.name}-lighthouse:{PORT}"},
            {"name": "TORCHFT_X_TOKEN_FILE", "value": "/run/token/token"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
        ]
        spread = {
            "labelSelector": {"matchLabels": {"app": self.name, "role": role}},
            "topologyKey": "kubernetes.io/hostname",
        }
        affinity = {"podAntiAffinity": {_PREFERRED: [{"weight": 100, "podAffinityTerm": spread}]}}
        mounts = [{"name": "token", "mountPath": "/run/token", "readOnly": True}]
        mounts.append({"name": "folder", "mountPath": self._folder})
        container = {"name": "main", "image": IMAGE, "command": command, "env": env, "volumeMounts": mounts}
        return {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 15,
            "tolerations": _TOLERATIONS,
            "affinity": affinity,
            "volumes": [
                {"name": "token", "secret": {"secretName": self.name, "defaultMode": 0o400}},
                {"name": "folder", "hostPath": {"path": self._folder}},
            ],
            "containers": [{**container, "imagePullPolicy": "Never"}],
        }


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _named(name: str, **fields: Any) -> Json:
    return {"metadata": {"name": name}, **fields}
