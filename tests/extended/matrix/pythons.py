"""Interpreters of the other Python versions, as far as this machine has them. They need no packages of their own."""

from __future__ import annotations

import sys
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
_PLACES = (("/usr/bin", ""), ("/usr/local/bin", ""), (str(Path.home() / ".pyenv/versions"), "{version}.*/bin/"))


def found() -> dict[str, str]:
    """Version -> interpreter; not the version that runs the tests. A shim on PATH may lead nowhere, so PATH isn't asked."""
    out: dict[str, str] = {}
    for version in VERSIONS:
        if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        for folder, below in _PLACES:
            paths = sorted(Path(folder).glob(f"{below.format(version=version)}python{version}"))
            if paths:
                out.setdefault(version, str(paths[-1]))
    return out


def missing() -> list[str]:
    return [v for v in VERSIONS if v not in found() and v != f"{sys.version_info[0]}.{sys.version_info[1]}"]
