"""Adjusts requests of `kubernetes`: one Volcano job, with one task of one pod for every replica of every role.

When one pod fails, TorchX's request restarts either all pods or none. With ours, the kubelet restarts a group's pod in place,
and the lighthouse's pod decides the job's outcome.

Volcano's own restarts are not used: RestartJob deletes every pod of the job, and each RestartTask or RestartPod counts
against one budget of the whole job. The job's minAvailable counts pods and names no groups. If it named the first groups,
and only others fitted, Volcano would wait forever.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import PurePosixPath
from typing import Any

from torchft_x import env
from torchft_x.arguments import set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.containers import LOCAL_RUN_DIR, REPLACED_WITHIN, SCRATCH, check_shared, find_token
from torchft_x.launch.schedulers.role import FtRole

_GRACE = 30  # seconds between SIGTERM and SIGKILL, Kubernetes' default, for a group to save its last step
_UNREACHABLE = 5  # seconds after which an unreachable node's pods are evicted; Kubernetes' default is 300
_MAX_HOST_NAME = 63  # characters: a pod's name is its host name, a DNS label

_ROLE_NAME = "torchx.pytorch.org/role-name"
_ROLE_INDEX = "torchx.pytorch.org/role-index"

# With several lighthouses, the loss of one (killed, 137) must not end the job. Only a lighthouse's verdict does.
_DECIDE_TOGETHER: list[dict[str, Any]] = [
    {"event": "TaskCompleted", "action": "CompleteJob"},
    {"exitCode": 1, "action": "TerminateJob"},
]

# The lighthouse's own outcome is the job's. Terminated is "failed" to TorchX, Aborted would be "cancelled".
_DECIDES: list[dict[str, Any]] = [
    {"event": "TaskCompleted", "action": "CompleteJob"},
    {"event": "PodFailed", "action": "TerminateJob"},
]


def adjust(role: FtRole, info: Any) -> Any:
    """Return the adjusted request. Raise `ConfigError` if its pods could not start, or not find each other."""
    resource: Any = getattr(getattr(info, "request", None), "resource", None)
    tasks = _tasks(resource)
    own = [t for t in tasks if _label(t, _ROLE_NAME) == role.name]
    if not own:
        return info
    for task in own:
        _check(role, resource, task)
    _patch_images(role, own, tasks)
    _know_completing()
    shared = all(_is_mounted(t, _value(t, env.RUN_DIR)) for t in tasks if _value(t, env.RUN_DIR))
    check_shared(role, shared=shared, where="pods")
    _give_token(role, own, tasks, shared)
    _warn_of_token(own)
    for task in own:
        _adjust_task(role, task)
        _adjust_pod(role, resource, task)
    _adjust_job(role, resource["spec"], len(tasks))
    return info


# --- the job ---------------------------------------------------------------------------------------------------------


def _adjust_job(role: FtRole, spec: dict[str, Any], pods: int) -> None:
    facts = role.ft
    if facts.kind == "trainer":
        spec["minAvailable"] = facts.min_replicas * facts.nodes + (facts.lighthouses if facts.own_lighthouse else 0)
        if facts.own_lighthouse:
            # A group that gave up exits with 0. Without a minimum, the job would count as succeeded if Volcano counts the
            # pods before it knows of the lighthouse's failure.
            spec["minSuccess"] = pods - (facts.lighthouses - 1)  # all lighthouses but one may be lost
    if not facts.own_lighthouse:
        # By default, Volcano isolates a job's pods from other jobs. The lighthouse is in another job.
        arguments = spec.get("plugins", {}).get("svc")
        if isinstance(arguments, list) and "--disable-network-policy" not in arguments:
            arguments.append("--disable-network-policy")


def _adjust_task(role: FtRole, task: dict[str, Any]) -> None:
    own_lighthouse = role.ft.kind == "lighthouse" and role.ft.own_lighthouse
    decide = _DECIDES if role.ft.lighthouses == 1 else _DECIDE_TOGETHER
    task["policies"] = [dict(policy) for policy in decide] if own_lighthouse else []
    if role.ft.kind == "sidecar":
        task["minAvailable"] = 0  # the job neither waits for a sidecar nor fails with it


def _know_completing() -> None:
    """Add Volcano's phase Completing to TorchX's states. TorchX 0.7.0 lacks it, so that ``--wait`` would fail on it."""
    states = getattr(importlib.import_module("torchx.schedulers.kubernetes_scheduler"), "JOB_STATE", None)
    if isinstance(states, dict) and "Terminating" in states:
        states.setdefault("Completing", states["Terminating"])


def _patch_images(role: FtRole, own: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> None:
    """Give all tasks with the role's image the patched one: TorchX sets it only for the first role."""
    patched = _container(own[0]).image
    if _label(own[0], _ROLE_INDEX) != "0" or patched == role.given_image:
        return
    for task in tasks:
        if _container(task).image == role.given_image:
            _container(task).image = patched
            if _value(task, "TORCHX_IMAGE"):
                _set(task, "TORCHX_IMAGE", patched)


def _give_token(role: FtRole, own: list[dict[str, Any]], tasks: list[dict[str, Any]], shared: bool) -> None:
    """Put the token into the environment of the role's pods if they share no directory. All pods of a request get the same."""
    if any(_value(t, name) for t in own for name in (env.TOKEN, env.TOKEN_FILE)):
        return
    of_others = next((v for t in tasks if (v := _value(t, env.TOKEN))), None)
    token = find_token(role, of_others, shared=shared, where="pod")
    if token is not None:
        for task in own:
            _set(task, env.TOKEN, token)


def _warn_of_token(own: list[dict[str, Any]]) -> None:
    """Warn once per job that its token is no secret: TorchX's request is one object, which can't contain a Secret."""
    if _label(own[0], _ROLE_INDEX) == "0" and any(_value(t, env.TOKEN) for t in own):
        print(
            "torchft_x: the run's token is a plain value in the pods of this job, and in what --dryrun prints: whoever may read "
            "pods in its namespace can join the job. `-s kubernetes_ft` keeps the token in a Secret; here, give a --token_file "
            "that is mounted.",
            file=sys.stderr,
        )


# --- a pod -----------------------------------------------------------------------------------------------------------


def _check(role: FtRole, resource: dict[str, Any], task: dict[str, Any]) -> None:
    if not _container(task).image:
        raise ConfigError("Kubernetes needs a container image with torchft_x in it: name one with --image.")
    name = _pod_name(resource, task)
    if len(name) > _MAX_HOST_NAME:
        raise ConfigError(
            f"The pod of {role.name} would be named {name}, which is {len(name)} characters long; Kubernetes allows "
            f"{_MAX_HOST_NAME}: choose a shorter --name."
        )


def _adjust_pod(role: FtRole, resource: dict[str, Any], task: dict[str, Any]) -> None:
    spec, facts = task["template"].spec, role.ft
    if facts.kind == "lighthouse":
        # Advertise a name: a pod that replaces this one has another address.
        host = f"{_pod_name(resource, task)}.{resource['metadata']['name']}"
        _set(task, env.ADVERTISE_HOST, host, unless_given=True)
        # TorchX requests 1 GiB less than the limit, for the lighthouse nothing: its pod would be evicted first.
        container = _container(task)
        container.resources.requests = dict(container.resources.limits)
        if facts.own_lighthouse:
            set_option(container.command, "--replaced_within", str(REPLACED_WITHIN))
    else:
        # Advertise an address: the pod's name can't be resolved in other pods.
        at = _model("V1EnvVarSource", field_ref=_model("V1ObjectFieldSelector", field_path="status.podIP"))
        _set(task, env.ADVERTISE_HOST, at, unless_given=True)
        if facts.own_lighthouse:
            set_option(_container(task).command, "--no_restart_code", "0")
    # The exit code counts for the job's own lighthouse, and for the groups of a job without its own lighthouse.
    counts = (facts.kind == "lighthouse") == facts.own_lighthouse
    spec.restart_policy = "Never" if counts else "OnFailure"
    if spec.termination_grace_period_seconds is None:
        spec.termination_grace_period_seconds = _GRACE
    if facts.kind == "trainer":
        _set(task, env.NOTICE, str(spec.termination_grace_period_seconds), unless_given=True)
    _tolerate(spec)
    _keep_run_dir(task)


def _tolerate(spec: Any) -> None:
    """Let the pod be evicted soon from a node that is not ready or unreachable. Existing tolerations are kept."""
    spec.tolerations = list(spec.tolerations or [])
    for trouble in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{trouble}"
        if not any(t.key == key for t in spec.tolerations):
            spec.tolerations.append(
                _model("V1Toleration", key=key, operator="Exists", effect="NoExecute", toleration_seconds=_UNREACHABLE)
            )


def _keep_run_dir(task: dict[str, Any]) -> None:
    """Give the pod a run directory of its own, unless the job's is mounted: the submitter's path is not in the pod."""
    run_dir = _value(task, env.RUN_DIR)
    if not run_dir or _is_mounted(task, run_dir):
        return
    spec, container = task["template"].spec, _container(task)
    volume = "torchft-x-run"  # outlives the container, so that logs are kept when the kubelet restarts it
    spec.volumes = [*(spec.volumes or []), _model("V1Volume", name=volume, empty_dir=_model("V1EmptyDirVolumeSource"))]
    mount = _model("V1VolumeMount", name=volume, mount_path=SCRATCH)
    container.volume_mounts = [*(container.volume_mounts or []), mount]
    _set(task, env.RUN_DIR, LOCAL_RUN_DIR)
    set_option(container.command, "--run_dir", LOCAL_RUN_DIR)


# --- TorchX's request, which holds models of the kubernetes package -----------------------------------------------------


def _tasks(resource: Any) -> list[dict[str, Any]]:
    """Return the request's tasks, or none if the request has an unknown shape."""
    spec = resource.get("spec") if isinstance(resource, dict) and "metadata" in resource else None
    tasks = spec.get("tasks") if isinstance(spec, dict) else None
    if not isinstance(tasks, list):
        return []
    return [t for t in tasks if getattr(getattr(t.get("template"), "spec", None), "containers", None)]


def _container(task: dict[str, Any]) -> Any:
    return task["template"].spec.containers[0]


def _label(task: dict[str, Any], name: str) -> str | None:
    value: str | None = (task["template"].metadata.labels or {}).get(name)
    return value


def _pod_name(resource: dict[str, Any], task: dict[str, Any]) -> str:
    return f"{resource['metadata']['name']}-{task['name']}-0"


def _value(task: dict[str, Any], name: str) -> str | None:
    """Return the value of a variable, or None if it does not exist or is filled in by Kubernetes."""
    return next((e.value for e in _container(task).env or [] if e.name == name), None)


def _set(task: dict[str, Any], name: str, value: Any, *, unless_given: bool = False) -> None:
    """Set a variable of the task's container to a string, or to a source of Kubernetes. With `unless_given`, keep an existing one."""
    container = _container(task)
    others = [e for e in container.env or [] if e.name != name]
    if not unless_given or len(others) == len(container.env or []):
        new = _model("V1EnvVar", name=name, **{"value" if isinstance(value, str) else "value_from": value})
        container.env = [*others, new]


def _is_mounted(task: dict[str, Any], path: str | None) -> bool:
    """Return whether the path lies on a writable mount of the pod that other pods may share."""
    private = {v.name for v in task["template"].spec.volumes or [] if v.empty_dir is not None}
    return path is not None and any(
        m.name not in private and not m.read_only and PurePosixPath(path).is_relative_to(m.mount_path)
        for m in _container(task).volume_mounts or []
    )


def _model(kind: str, /, **fields: Any) -> Any:
    """Return an object of the kubernetes package's class. TorchX has made the request with it, so it is installed."""
    return getattr(importlib.import_module("kubernetes.client"), kind)(**fields)
