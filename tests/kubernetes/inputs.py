"""What a container is given: its environment, expanded, and its volumes as directories of the node."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.container import Mount

Json = dict[str, Any]


class NotReady(Exception):
    """Something that a container needs is not there; the sentence says what."""


class Inputs:
    """The environment and the volumes of one pod's containers."""

    def __init__(self, api: Api, pod: Json, address: str, node_address: str, folder: Path) -> None:
        self._api = api
        self._pod = pod
        self._namespace = pod["metadata"]["namespace"]
        self._addresses = {"status.podIP": address, "status.hostIP": node_address}
        self._folder = folder

    def environment(self, container: Json, image: Mapping[str, str]) -> dict[str, str]:
        """Of the image, of the services, of envFrom and env, later ones first; `$(NAME)` expanded. Raises NotReady."""
        env = dict(image)
        if self._pod["spec"].get("enableServiceLinks", True):
            env.update(self._service_links())
        for source in container.get("envFrom") or []:
            for kind, key in (("secrets", "secretRef"), ("configmaps", "configMapRef")):
                if key in source:
                    values = self._values(kind, source[key]["name"], source[key].get("optional", False))
                    env.update({source.get("prefix", "") + k: v.decode() for k, v in values.items()})
        for item in container.get("env") or []:
            value = self._value(item["valueFrom"]) if "valueFrom" in item else expand(item.get("value", ""), env)
            if value is not None:
                env[item["name"]] = value
        env["HOSTNAME"] = self._pod["spec"].get("hostname") or self._pod["metadata"]["name"]
        return env

    def mounts(self, container: Json) -> list[Mount]:
        """The container's volumes, filled. Raises NotReady."""
        volumes = {v["name"]: v for v in self._pod["spec"].get("volumes") or []}
        found = []
        for wanted in container.get("volumeMounts") or []:
            source = self._volume(volumes[wanted["name"]])
            if source is not None and wanted.get("subPath"):
                source = source / wanted["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
            found.append(Mount(source, wanted["mountPath"], wanted.get("readOnly", False)))
        return found

    def refresh(self) -> None:
        """Write volumes of ConfigMaps and Secrets anew, each file as a whole. Raises NotReady, ApiError, OSError."""
        for volume in self._pod["spec"].get("volumes") or []:
            if {"configMap", "secret"} & volume.keys() and (self._folder / "volumes" / volume["name"]).exists():
                self._volume(volume)

    def field(self, path: str) -> str:
        """A field of the pod, as the downward API gives it. Raises NotReady."""
        if path in self._addresses:
            return self._addresses[path]
        if subscript := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((self._pod["metadata"].get(subscript[1]) or {}).get(subscript[2], ""))
        value: Any = self._pod
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict):  # of a volume: all labels, or all annotations
            return "".join(f"{k}={json.dumps(v)}\n" for k, v in sorted(value.items()))
        if value is None:
            raise NotReady(f"the pod has no field {path}")
        return str(value)

    def _value(self, source: Json) -> str | None:
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        for kind, key in (("secrets", "secretKeyRef"), ("configmaps", "configMapKeyRef")):
            if key in source:
                ref = source[key]
                values = self._values(kind, ref["name"], ref.get("optional", False))
                if ref["key"] in values:
                    return values[ref["key"]].decode()
                if ref.get("optional"):
                    return None
                raise NotReady(f"couldn't find key {ref['key']} in {kind[:-1]} {self._namespace}/{ref['name']}")
        raise NotReady(f"this kubelet knows no valueFrom of {', '.join(source)}")

    def _values(self, kind: str, name: str, optional: bool) -> dict[str, bytes]:
        try:
            found = self._api.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")
        except ApiError as e:
            if e.status == 404 and optional:
                return {}
            raise NotReady(f'{kind[:-1]} "{name}" not found' if e.status == 404 else str(e)) from e
        decode = base64.b64decode if kind == "secrets" else str.encode
        return {k: decode(v) for k, v in (found.get("data") or {}).items()}

    def _service_links(self) -> dict[str, str]:
        found = {}
        for service in self._api.get(f"/api/v1/namespaces/{self._namespace}/services")["items"]:
            address, ports = service["spec"].get("clusterIP"), service["spec"].get("ports") or []
            if address and address != "None" and ports:
                name = service["metadata"]["name"].upper().replace("-", "_")
                found[f"{name}_SERVICE_HOST"] = address
                found[f"{name}_SERVICE_PORT"] = str(ports[0]["port"])
        return found

    def _volume(self, volume: Json) -> Path | None:
        """Its directory on the node; None for memory."""
        place = self._folder / "volumes" / volume["name"]
        if "emptyDir" in volume:
            if (volume["emptyDir"] or {}).get("medium") == "Memory":
                return None  # each container has its own: a limit of this kubelet
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)
            return place
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                raise NotReady(f"hostPath {path} does not exist")
            return path
        if "persistentVolumeClaim" in volume:
            return self._claimed(volume["persistentVolumeClaim"]["claimName"])
        files = self._files(volume)
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            new = place / f".{name.replace('/', '_')}.new"
            new.write_bytes(content)
            new.chmod(self._mode(volume))
            new.replace(place / name)
        return place

    def _files(self, volume: Json) -> dict[str, bytes]:
        if "projected" in volume:
            return {k: v for source in volume["projected"]["sources"] for k, v in self._files(source).items()}
        for kind, key, name in (("secrets", "secret", "secretName"), ("configmaps", "configMap", "name")):
            if key in volume:
                source = volume[key]
                values = self._values(kind, source.get(name) or source["name"], source.get("optional", False))
                items = source.get("items")
                return {i["path"]: values[i["key"]] for i in items} if items else values
        if "downwardAPI" in volume:
            items = volume["downwardAPI"]["items"]
            return {i["path"]: self.field(i["fieldRef"]["fieldPath"]).encode() for i in items}
        raise NotReady(f"this kubelet knows no volume of {', '.join(k for k in volume if k != 'name')}")

    @staticmethod
    def _mode(volume: Json) -> int:
        kinds = (volume.get(kind) or {} for kind in ("secret", "configMap", "downwardAPI", "projected"))
        return next((int(kind["defaultMode"]) for kind in kinds if "defaultMode" in kind), 0o644)

    def _claimed(self, claim: str) -> Path:
        found = self._api.get(f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{claim}")
        name = found["spec"].get("volumeName")
        if not name or found["status"]["phase"] != "Bound":
            raise NotReady(f"persistentvolumeclaim {claim} is not bound")
        volume = self._api.get(f"/api/v1/persistentvolumes/{name}")
        return Path(volume["spec"]["hostPath"]["path"])


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` for what `env` has, `$$` for a dollar; the rest stays."""
    return re.sub(r"\$(\$|\(([A-Za-z_][\w.-]*)\))", lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


def write_hosts(pod: Json, address: str, folder: Path) -> None:
    """The pod's /etc/hosts."""
    spec, meta = pod["spec"], pod["metadata"]
    name = spec.get("hostname") or meta["name"]
    full = f"{name}.{spec['subdomain']}.{meta['namespace']}.svc.cluster.local " if spec.get("subdomain") else ""
    aliases = [f"{a['ip']} {' '.join(a['hostnames'])}" for a in spec.get("hostAliases") or []]
    lines = ["127.0.0.1 localhost", f"{address} {full}{name}", *aliases]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
