"""Builds the objects of a job on Kubernetes from a TorchX app. It does not contact the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchx.specs import AppDef, BindMount, DeviceMount, Role, VolumeMount, macros

from torchft_x import env
from torchft_x.arguments import option, set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules import names, pod, scale
from torchft_x.launch.kubernetes.rules.objects import render
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER, Mount, Part, PodSettings, check_part
from torchft_x.launch.schedulers.containers import LOCAL_RUN_DIR, REPLACED_WITHIN, SCRATCH, find_token
from torchft_x.launch.schedulers.role import FtRole

Json = dict[str, Any]

_RANK0 = "TORCHX_RANK0_HOST"
_PORT = 29510  # default port of a lighthouse
_SHOWN = "(made when the job is submitted)"


@dataclass(frozen=True)
class Request:
    """Request for a job, as `torchx run --dryrun` shows it. Its token is inserted at its submission."""

    app: str
    objects: list[Json]


def request(app: AppDef, unique: str, settings: PodSettings, gpu: str) -> Request:
    """Return the request for an app. `unique` is the suffix that makes the job's name unique, `gpu` the resource of a GPU.

    Raise `ConfigError` if its pods could not start, or not find each other.
    """
    roles = {role.name: role.num_replicas for role in app.roles}
    name = names.app_id(app.name, unique, roles)
    ours = [role for role in app.roles if isinstance(role, FtRole)]
    without_file = [role for role in ours if env.TOKEN_FILE not in role.env and "--token_file" not in role.args]
    has_token = any(find_token(role, None, shared=False, where="pod") is not None for role in without_file)
    parts = [
        _part(name, role, replica, settings, gpu, has_token)
        for role in app.roles
        for replica in range(role.num_replicas)
    ]
    minimum = next((role.ft.min_replicas for role in ours), 1)
    own = any(role.ft.own_lighthouse for role in ours)
    if not own:  # the peers of a job with a lighthouse outside are other jobs' groups
        settings = replace(settings, network_policy=False)
    return Request(name, render(name, parts, settings, _SHOWN if has_token else None, minimum))


def with_token(made: Request) -> list[Json]:
    """Return the objects to create, with the shell's token or a new one."""
    token = env.read_token() or env.new_token()
    return [{**o, "stringData": {pod.TOKEN_KEY: token}} if o["kind"] == "Secret" else o for o in made.objects]


def _part(app: str, role: Role, replica: int, settings: PodSettings, gpu: str, has_token: bool) -> Part:
    kind = role.ft.kind if isinstance(role, FtRole) else ""
    number = pod.SLOT if kind == TRAINER else str(replica)
    values = macros.Values(img_root="", app_id=app, replica_id=number, rank0_env=_RANK0)
    made = values.apply(role)
    mounts = tuple(_mount(m) for m in role.mounts)
    command = [made.entrypoint, *made.args]
    environ = dict(made.env)
    scratch = ""
    if isinstance(role, FtRole):
        run_dir = environ.get(env.RUN_DIR, "")
        if not run_dir or not pod.is_shared(run_dir, mounts):  # the submitter's path is not in the pod
            scratch, environ[env.RUN_DIR] = SCRATCH, LOCAL_RUN_DIR
            if option(command, "--run_dir"):
                set_option(command, "--run_dir", LOCAL_RUN_DIR)
        for name, value in _options(role).items():
            set_option(command, name, value)
    config = scale.FOLDER if kind == LIGHTHOUSE and "--job_groups" in command else ""
    if config:
        command += ["--groups_file", f"{config}/{scale.FILE}"]
    part = Part(
        role=role.name,
        replica=replica,
        kind=kind,
        image=role.image,
        command=tuple(command),
        env=environ,
        limits=_limits(role, gpu),
        mounts=mounts,
        group=str(replica // role.ft.nodes) if isinstance(role, FtRole) and kind == TRAINER else "",
        ports=_ports(role, command, environ),
        retries=role.max_retries,
        config=config,
        scratch=scratch,
    )
    check_part(part)
    more = _variables(app, role, part, settings, has_token) if isinstance(role, FtRole) else []
    first = names.service(app) if isinstance(role, FtRole) else f"{names.part(app, role.name, 0)}.{app}"
    return replace(part, more_env=(*more, {"name": _RANK0, "value": first}))


def _variables(app: str, role: FtRole, part: Part, settings: PodSettings, has_token: bool) -> list[Json]:
    """Return the variables that a pod of one of our roles needs in addition to the role's own."""
    wanted = {}
    if settings.events:
        wanted[env.EVENTS] = "stdout"
    if part.kind == LIGHTHOUSE:
        if role.ft.lighthouses > 1:
            raise ConfigError(
                f"--lighthouses {role.ft.lighthouses}: kubernetes_ft keeps one, which Kubernetes makes again where it is lost "
                "while the groups train on; leave --lighthouses out."
            )
        wanted[env.ADVERTISE_HOST] = names.service(app)  # a pod that replaces it has another address
        wanted[env.HTTP_BIND] = f"[::]:{part.ports[0] + pod.PAGE_BESIDE}"  # for the readiness probe
    else:
        wanted[env.ADVERTISE_HOST] = f"$({pod.POD_IP})"
        if part.kind == TRAINER:
            wanted[env.NOTICE] = str(settings.grace)
    found: list[Json] = [{"name": n, "value": v} for n, v in wanted.items() if n == env.HTTP_BIND or n not in part.env]
    if has_token:
        source = {"secretKeyRef": {"name": app, "key": pod.TOKEN_KEY}}
        found.append({"name": env.TOKEN, "valueFrom": source})
    return found


def _options(role: FtRole) -> dict[str, str]:
    """Return the options of a supervisor whose pod Kubernetes restarts unless it ends with 0: when evicted, for example."""
    found = {"--no_restart_code": "0", "--last_words": pod.LAST_WORDS, "--alive": pod.ALIVE}
    if role.ft.kind == LIGHTHOUSE and role.ft.own_lighthouse:
        found["--replaced_within"] = str(REPLACED_WITHIN)
    return found


def _ports(role: Role, command: Sequence[str], environ: dict[str, str]) -> tuple[int, ...]:
    if not isinstance(role, FtRole):
        return tuple(role.port_map.values())
    if role.ft.kind != LIGHTHOUSE:
        return ()
    text = environ.get(env.LIGHTHOUSE_AT, f":{_PORT}").rpartition(":")[2]
    if "--bind" in command:
        text = command[command.index("--bind") + 1].rpartition(":")[2]
    if not text.isdigit() or not 0 < int(text) < 65536 - pod.PAGE_BESIDE:
        raise ConfigError(f"the lighthouse's port is {text}; in a pod it must be a number from 1 to 65525.")
    return (int(text),)


def _limits(role: Role, gpu: str) -> dict[str, str]:
    resource = role.resource
    found = {}
    if resource.cpu > 0:
        found["cpu"] = str(resource.cpu)
    if resource.memMB > 0:
        found["memory"] = f"{int(resource.memMB)}M"
    if resource.gpu > 0:
        found[gpu] = str(int(resource.gpu))
    return found | {name: str(number) for name, number in (resource.devices or {}).items()}


def _mount(mount: Any) -> Mount:
    if isinstance(mount, VolumeMount):
        return Mount("claim", mount.src, mount.dst_path, mount.read_only)
    if isinstance(mount, BindMount):
        return Mount("host", mount.src_path, mount.dst_path, mount.read_only)
    if isinstance(mount, DeviceMount):
        return Mount("device", mount.src_path, mount.dst_path)
    raise ConfigError(f"kubernetes_ft knows no mount of the kind {type(mount).__name__}.")
