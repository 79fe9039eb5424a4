"""Container images built without docker: an archive in the format of `docker save`, which containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    name: str  # name and tag
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, int] = field(default_factory=dict)  # empty folders, with their mode
    programs: Mapping[str, Path] = field(default_factory=dict)  # files of this machine to copy
    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    cwd: str = "/"


def write_archive(path: Path, images: Sequence[Image]) -> None:
    """Write all images to one file, each with one layer."""
    manifest = []
    with tarfile.open(path, "w") as archive:
        for image in images:
            layer = _layer(image)
            digest = hashlib.sha256(layer).hexdigest()
            config = json.dumps(_config(image, digest)).encode()
            names = f"{hashlib.sha256(config).hexdigest()}.json", f"{digest}.tar"
            _add(archive, names[0], config)
            _add(archive, names[1], layer)
            manifest.append({"Config": names[0], "RepoTags": [image.name], "Layers": [names[1]]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _config(image: Image, digest: str) -> dict[str, Any]:
    machine, env = platform.machine(), [f"{k}={v}" for k, v in image.env.items()]
    return {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": env, "Cmd": list(image.command), "WorkingDir": image.cwd},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }


def _layer(image: Image) -> bytes:
    out = io.BytesIO()
    inner = [*image.links, *image.folders, *image.programs]
    parents = {str(p) for name in inner for p in Path(name).parents if str(p) != "."}
    folders = {**dict.fromkeys(parents, 0o755), **image.folders}
    with tarfile.open(fileobj=out, mode="w") as layer:
        for name in sorted(folders):  # a folder comes before its contents
            _add(layer, name, mode=folders[name], type=tarfile.DIRTYPE)
        for name, target in sorted(image.links.items()):
            _add(layer, name, mode=0o777, type=tarfile.SYMTYPE, linkname=target)
        for name, source in sorted(image.programs.items()):
            _add(layer, name, source.read_bytes(), mode=0o755)
    return out.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: Any) -> None:
    found = tarfile.TarInfo(name)
    found.size = len(data)
    for field_name, value in fields.items():
        setattr(found, field_name, value)
    archive.addfile(found, io.BytesIO(data))
