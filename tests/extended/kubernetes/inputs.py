"""The inputs of a container: its environment, expanded, and its volumes as directories of the node."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.extended.kubernetes.api import Api, ApiError
from tests.extended.kubernetes.container import Mount

Json = dict[str, Any]


class NotReady(Exception):
    """An input of a container does not exist yet; the sentence names it."""


class Inputs:
    """The environment and the volumes of one pod's containers."""

    def __init__(self, api: Api, pod: Json, address: str, node_address: str, folder: Path) -> None:
        self._api = api
        self._pod = pod
        self._namespace = pod["metadata"]["namespace"]
        self._addresses = {"status.podIP": address, "status.hostIP": node_address}
        self._folder = folder

    def environment(self, container: Json, image: Mapping[str, str]) -> dict[str, str]:
        """Return the container's environment. Raise `NotReady`.

        It is the image's, updated by envFrom and env in turn, with `$(NAME)` expanded.
        """
        env = dict(image)
        for source in container.get("envFrom") or []:
            env.update({k: v.decode() for k, v in self._values("secrets", source["secretRef"]["name"]).items()})
        for item in container.get("env") or []:
            known = "valueFrom" in item
            env[item["name"]] = self._value(item["valueFrom"]) if known else expand(item.get("value", ""), env)
        env["HOSTNAME"] = self._pod["spec"].get("hostname") or self._pod["metadata"]["name"]
        return env

    def mounts(self, container: Json) -> list[Mount]:
        """Return the container's volumes, with their files written. Raise `NotReady`."""
        volumes = {v["name"]: v for v in self._pod["spec"].get("volumes") or []}
        return [
            Mount(self._volume(volumes[m["name"]]), m["mountPath"], m.get("readOnly", False))
            for m in container.get("volumeMounts") or []
        ]

    def refresh(self) -> None:
        """Write the volumes of ConfigMaps anew, each file atomically. Raise `NotReady`, `ApiError`, `OSError`."""
        for volume in self._pod["spec"].get("volumes") or []:
            if "configMap" in volume and (self._folder / "volumes" / volume["name"]).exists():
                self._volume(volume)

    def field(self, path: str) -> str:
        """Return a field of the pod, as the downward API does. Raise `NotReady`."""
        if path in self._addresses:
            return self._addresses[path]
        if subscript := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((self._pod["metadata"].get(subscript[1]) or {}).get(subscript[2], ""))
        value: Any = self._pod
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            raise NotReady(f"the pod has no field {path}")
        return str(value)

    def _value(self, source: Json) -> str:
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        if "secretKeyRef" not in source:
            raise NotReady(f"this kubelet knows no valueFrom of {', '.join(source)}")
        ref = source["secretKeyRef"]
        values = self._values("secrets", ref["name"])
        if ref["key"] not in values:
            raise NotReady(f"couldn't find key {ref['key']} in secret {self._namespace}/{ref['name']}")
        return values[ref["key"]].decode()

    def _values(self, kind: str, name: str) -> dict[str, bytes]:
        try:
            found = self._api.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")
        except ApiError as e:
            raise NotReady(f'{kind[:-1]} "{name}" not found' if e.status == 404 else str(e)) from e
        decode = base64.b64decode if kind == "secrets" else str.encode
        return {k: decode(v) for k, v in (found.get("data") or {}).items()}

    def _volume(self, volume: Json) -> Path | None:
        """Return the volume's directory on the node, or None for a volume in memory."""
        folder = self._folder / "volumes" / volume["name"]
        if "emptyDir" in volume:
            if (volume["emptyDir"] or {}).get("medium") == "Memory":
                return None  # limitation of this kubelet: each container has a volume of its own
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            return folder
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if not path.exists():
                raise NotReady(f"hostPath {path} does not exist")
            return path
        if "configMap" in volume:
            files = self._values("configmaps", volume["configMap"]["name"])
        elif "secret" in volume:  # a service account's token
            files = self._values("secrets", volume["secret"]["secretName"])
        else:
            raise NotReady(f"this kubelet knows no volume of {', '.join(k for k in volume if k != 'name')}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            new = folder / f".{name}.new"
            new.write_bytes(content)
            new.chmod(0o644)
            new.replace(folder / name)
        return folder


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value in `env`, and `$$` by a dollar. Other text stays."""
    return re.sub(r"\$(\$|\(([A-Za-z_][\w.-]*)\))", lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


def write_hosts(pod: Json, address: str, folder: Path) -> None:
    """Write the pod's /etc/hosts."""
    spec, meta = pod["spec"], pod["metadata"]
    name = spec.get("hostname") or meta["name"]
    full = f"{name}.{spec['subdomain']}.{meta['namespace']}.svc.cluster.local " if spec.get("subdomain") else ""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {full}{name}\n")
