"""TorchX scheduler `kubernetes_ft`: a job of plain Kubernetes objects, in which each group is restarted on its own.

It works with TorchX 0.7.0 and its nightly line. An app id is NAMESPACE:NAME, as for TorchX's own scheduler, or
NAMESPACE:NAME@CONTEXT with ``-cfg context=CONTEXT``.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035  TorchX compares an option's type with these

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs import AppDef, AppDryRunInfo, AppState, runopts

from torchft_x.errors import ConfigError
from torchft_x.launch.job.states import ALIVE, PENDING, RUNNING, SUCCEEDED
from torchft_x.launch.kubernetes import app as apps
from torchft_x.launch.kubernetes import handle, jobs
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.rules.parts import PodSettings
from torchft_x.launch.kubernetes.rules.state import JobState
from torchft_x.launch.plugin import common
from torchft_x.launch.schedulers import excepthook

NAME = "kubernetes_ft"
_STRINGS = List[str]  # noqa: UP006
_PAIRS = Dict[str, str]  # noqa: UP006
_OPTIONS: list[tuple[str, Any, Any, str]] = [
    ("namespace", str, None, "of the job; else that of the kubeconfig's context, else default"),
    ("context", str, None, "of the kubeconfig; else the current one"),
    ("service_account", str, None, "of the pods; else default, whose token they don't get"),
    ("user", int, None, "of all processes in the pods; else the image's, which must not be root. 0: root"),
    ("priority_class", str, None, "of the pods"),
    ("queue", str, None, "Kueue's local queue, as a label of every Job"),
    ("pull_secrets", _STRINGS, None, "Secrets with which images are pulled"),
    ("env_secrets", _STRINGS, None, "Secrets whose keys become variables of every container"),
    ("node_selector", _PAIRS, None, "labels that a node must have: name:value,name:value"),
    ("annotations", _PAIRS, None, "of the pods: name:value,name:value"),
    ("spread", str, "kubernetes.io/hostname", "label of nodes over whose values pods are spread; none: not at all"),
    ("toleration", int, 5, "seconds that a pod stays on a node which is out of touch"),
    ("grace", int, 30, "seconds between SIGTERM and SIGKILL"),
    ("start", int, 600, "seconds until a container that has not begun is started again"),
    ("ttl", int, 86400, "seconds until a job that is over is removed; -1: it stays"),
    ("network_policy", bool, True, "only the job's own pods reach its ports"),
    ("events", bool, False, "events are printed, too, each as a JSON object in a line of its own"),
    ("gpu_resource", str, "nvidia.com/gpu", "the resource of which --gpu asks so many"),
    ("overlay", str, None, "a YAML file with fields of a pod's spec, merged into every pod's"),
]


class KubernetesFtScheduler(Scheduler):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Scheduler for plain Kubernetes. It contacts a cluster only to submit, describe or cancel a job, never for a dry run."""

    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._cluster = functools.cache(Cluster)
        if excepthook.in_command("log"):
            excepthook.end_quietly()

    def _run_opts(self) -> runopts:
        opts = runopts()
        for name, kind, default, words in _OPTIONS:
            opts.add(name, type_=kind, default=default, help=words)
        return opts

    def _validate(self, app: AppDef, *_: Any) -> None:
        """Accept every app. TorchX's own check refuses roles without resources, which Kubernetes accepts."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> Any:
        with common.sentence():
            common.prepare(app)
            gpu = str(cfg.get("gpu_resource") or "nvidia.com/gpu")
            made = apps.request(app, secrets.token_hex(4), settings(cfg), gpu)
        return AppDryRunInfo(made, as_yaml)

    def schedule(self, dryrun_info: Any) -> str:
        made, cfg = dryrun_info.request, _cfg(dryrun_info)
        context = cfg.get("context")
        with common.sentence("the job can't be submitted: "):
            cluster = self._cluster(context, cfg.get("namespace"))
            jobs.submit(cluster, apps.with_token(made))
        return handle.app_id(cluster.namespace, made.app, context)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        cluster, name = self._locate(app_id)
        with common.sentence():
            found = jobs.find(cluster, name, why=True)
        if found is None and excepthook.in_command("log"):  # `torchx log` would wait forever
            raise common.unknown_job(NAME, f"{cluster.namespace}:{name}", "of your context's namespace")
        if found is None:
            return None
        has_log = any(part.state == RUNNING or part.restarts for part in found.parts)
        alive = any(part.state in ALIVE for part in found.parts)
        if (
            (found.state == PENDING and has_log and excepthook.in_command("log"))  # `torchx log` waits on PENDING
            or (alive and excepthook.in_command("cancel"))  # `torchx cancel` ends no job that is over
        ):
            found = replace(found, state=RUNNING)
        return _response(app_id, found)

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        context, namespace = ((cfg or {}).get(name) for name in ("context", "namespace"))  # of the nightly line only
        with common.sentence():
            cluster = self._cluster(context, namespace)
            found = [(handle.app_id(cluster.namespace, job.app, context), job.state) for job in jobs.every(cluster)]
        return [ListAppResponse(app_id=app_id, state=AppState[state]) for app_id, state in found]

    def _cancel_existing(self, app_id: str) -> None:
        cluster, name = self._locate(app_id)
        with common.sentence():
            jobs.cancel(cluster, name)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        cluster, name = self._locate(app_id)
        if streams not in (None, Stream.COMBINED):
            raise excepthook.refused("a container's log holds both streams; leave --streams out.")
        if until is not None:
            raise excepthook.refused("Kubernetes gives logs up to now; leave --until out.")
        with common.sentence():
            found = jobs.find(cluster, name)
        parts = found.parts if found else ()
        part = next((p for p in parts if (p.role, p.replica) == (role_name, k)), None)
        if part is None:
            raise common.unknown_replica(name, f"{role_name}/{k}", [f"{p.role}/{p.replica}" for p in parts])
        seconds = None if since is None else (datetime.now(timezone.utc) - since.astimezone()).total_seconds()
        return common.selected(_told(jobs.lines(cluster, name, part, should_tail, seconds)), regex)

    def _locate(self, app_id: str) -> tuple[Cluster, str]:
        """Return the cluster of an app id and the job's name in it."""
        with common.sentence():
            found = handle.parse(app_id)
            cluster = self._cluster(found.context, found.namespace)
        return cluster, found.app


def settings(cfg: Mapping[str, Any]) -> PodSettings:
    """Return the pods' settings for the options. Raise `ConfigError` for values that Kubernetes would refuse."""
    given = {f.name: cfg[f.name] for f in fields(PodSettings) if cfg.get(f.name) is not None}
    given |= {"overlay": _overlay(cfg.get("overlay"))}
    if given.get("spread") == "none":
        given["spread"] = ""
    if given.get("ttl") == -1:
        given["ttl"] = None
    return PodSettings(**given)


def _overlay(path: Any) -> Mapping[str, Any]:
    if not path:
        return {}
    import yaml  # type: ignore[import-untyped]  # a dependency of TorchX

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        reason = getattr(e, "strerror", None) or str(e).splitlines()[0]
        raise ConfigError(f"-cfg overlay={path}: it can't be read as YAML ({reason}).") from None
    if isinstance(found, dict) and "spec" in found and "containers" not in found:
        found = found["spec"]
    if not isinstance(found, dict):
        raise ConfigError(f"-cfg overlay={path}: it holds no fields of a pod's spec, such as `nodeSelector:`.")
    return found


def _told(lines: Iterable[str]) -> Iterator[str]:
    with common.sentence():
        yield from lines


def _cfg(info: Any) -> Mapping[str, Any]:
    """Return the options of a dry run, under the name of either line of TorchX."""
    found: Mapping[str, Any] = getattr(info, "cfg", None) or getattr(info, "_cfg", None) or {}
    return found


def as_yaml(made: apps.Request) -> str:
    """Return the objects as input for `kubectl apply -f -`, without the token and the owner."""
    import yaml

    return "---\n".join(yaml.safe_dump(body, sort_keys=False, width=120) for body in made.objects)


def _response(app_id: str, job: JobState) -> DescribeAppResponse:
    replicas = []
    for part in job.parts:
        words = [f"restarts: {part.restarts}"] if part.restarts else []
        words += [part.reason] if part.reason and part.state != SUCCEEDED else []
        replicas.append(common.replica(part.role, part.replica, part.state, part.node, words))
    reason = " ".join(filter(None, [job.reason, job.advice(f"{NAME}://torchx/{app_id}")]))
    return common.response(app_id, job.state, sum(part.restarts for part in job.parts), reason, replicas)


def create_scheduler(session_name: str, **_: Any) -> KubernetesFtScheduler:
    """Return the scheduler, as TorchX's factory. TorchX passes every variable TORCHX_... as an option."""
    return KubernetesFtScheduler(session_name)
