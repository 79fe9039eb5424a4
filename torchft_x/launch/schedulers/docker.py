"""Adjusts requests of `local_docker`: every replica is a container of this machine, with its own name on TorchX's network.

A container sees only the mounted parts of the submitter's file system. Without a mounted run directory each container has
its own, and the token is in the containers' environment.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from torchft_x import env
from torchft_x.arguments import set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.containers import LOCAL_RUN_DIR, check_shared, find_token
from torchft_x.launch.schedulers.role import FtRole

_ROLE_NAME = "torchx.pytorch.org/role-name"


def adjust(role: FtRole, info: Any) -> Any:
    """Return the adjusted request. Raise `ConfigError` if its containers could not start, or not find each other."""
    containers = _containers(info)
    own = [c for c in containers if c.kwargs["labels"].get(_ROLE_NAME) == role.name]
    if not own:
        return info
    _patch_images(role, own, containers)
    if not own[0].image:
        raise ConfigError("local_docker needs a container image with torchft_x in it: name one with --image.")
    # Containers that were adjusted before have LOCAL_RUN_DIR. The mounts of the others are TorchX's.
    shared = all(_is_mounted(c, _run_dir(c)) for c in containers if _run_dir(c))
    check_shared(role, shared=shared, where="containers")
    _give_token(role, own, containers, shared)
    for container in own:
        if _run_dir(container) and not _is_mounted(container, _run_dir(container)):
            _environment(container)[env.RUN_DIR] = LOCAL_RUN_DIR
            set_option(container.command, "--run_dir", LOCAL_RUN_DIR)
    return info


def _give_token(role: FtRole, own: list[Any], containers: list[Any], shared: bool) -> None:
    if any(_environment(c).get(name) for c in own for name in (env.TOKEN, env.TOKEN_FILE)):
        return
    of_others = next((t for c in containers if (t := _environment(c).get(env.TOKEN))), None)
    token = find_token(role, of_others, shared=shared, where="container")
    if token is not None:
        for container in own:
            _environment(container)[env.TOKEN] = token


def _patch_images(role: FtRole, own: list[Any], containers: list[Any]) -> None:
    """Give all containers with the role's image the patched one: TorchX sets it only for the first role."""
    patched = own[0].image
    if own[0] is not containers[0] or patched == role.given_image:
        return
    for container in containers:
        if container.image == role.given_image:
            container.image = patched
            if "TORCHX_IMAGE" in _environment(container):
                _environment(container)["TORCHX_IMAGE"] = patched


# --- TorchX's request --------------------------------------------------------------------------------------------------


def _containers(info: Any) -> list[Any]:
    """Return the request's containers, or none if the request has an unknown shape."""
    containers = getattr(getattr(info, "request", None), "containers", None)
    return list(containers) if isinstance(containers, list) and all(map(_is_known, containers)) else []


def _is_known(container: Any) -> bool:
    options = getattr(container, "kwargs", None)
    words = getattr(container, "command", None)
    return (
        isinstance(options, dict)
        and isinstance(options.get("environment"), dict)
        and isinstance(options.get("labels"), dict)
        and isinstance(words, list)
    )


def _environment(container: Any) -> dict[str, str]:
    environment: dict[str, str] = container.kwargs["environment"]
    return environment


def _run_dir(container: Any) -> str:
    return _environment(container).get(env.RUN_DIR, "")


def _is_mounted(container: Any, path: str) -> bool:
    """Return whether the path lies on a writable mount of the container. A mount is a mapping in Docker's format."""
    return any(
        not m.get("ReadOnly") and PurePosixPath(path).is_relative_to(m.get("Target", ""))
        for m in container.kwargs.get("mounts") or []
    )
