"""Options of the scheduler, and their conversion to settings of pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035  TorchX compares an option's type with these

from torchx.specs import runopts

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules.parts import PodSettings


def run_opts() -> runopts:
    opts = runopts()
    for name, kind, default, words in _OPTIONS:
        opts.add(name, type_=kind, default=default, help=words)
    return opts


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
