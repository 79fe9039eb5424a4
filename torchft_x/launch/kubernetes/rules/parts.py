"""Input of the rendering: the replicas of a job, and the settings of their pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules import names

LIGHTHOUSE = "lighthouse"
TRAINER = "trainer"
WITHOUT_END = 1_000_000
"""Number of a Job's pods that may fail, practically unlimited: our parts decide themselves when to give up."""
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY)$", re.IGNORECASE)


@dataclass(frozen=True)
class Mount:
    kind: Literal["claim", "host", "device"]
    source: str  # a PersistentVolumeClaim, or a path of the node
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Part:
    """One replica of a role, which runs in one pod."""

    role: str
    replica: int
    kind: str  # lighthouse, trainer, sidecar; '' for a program that isn't ours
    image: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    limits: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    group: str = ""  # group id of a trainer
    ports: tuple[int, ...] = ()
    config: str = ""  # path at which the job's ConfigMap is mounted; '' if it is not
    retries: int = 0  # number of pods that may fail, for a program that isn't ours
    scratch: str = ""  # path of a directory that lives as long as the pod, or ''
    more_env: tuple[Mapping[str, Any], ...] = ()  # variables that override those of `env`, as Kubernetes has them


@dataclass(frozen=True)
class PodSettings:
    """Settings of a job's pods. Raises `ConfigError` for values that Kubernetes would refuse, or that make no sense."""

    service_account: str = ""  # ServiceAccount whose token the pods get; '' for no token
    user: int | None = None  # user id of all processes; 0 is root; None is the image's, which must not be root
    priority_class: str = ""
    queue: str = ""  # Kueue's local queue
    pull_secrets: Sequence[str] = ()
    env_secrets: Sequence[str] = ()  # Secrets whose keys become variables
    node_selector: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spread: str = "kubernetes.io/hostname"  # node label over whose values the pods are spread; '' to disable
    toleration: int = 5  # seconds that a pod stays on a node that is not ready or unreachable
    grace: int = 30  # seconds between SIGTERM and SIGKILL
    start: int = 600  # seconds until a container whose supervisor has not begun is restarted
    ttl: int | None = None  # seconds until an ended job is deleted; None to keep it
    network_policy: bool = True
    events: bool = False  # whether each event is printed, for collectors of logs
    overlay: Mapping[str, Any] = field(default_factory=dict)  # merged into every pod's spec

    def __post_init__(self) -> None:
        for name, least in (("toleration", 0), ("grace", 1), ("start", 1), ("ttl", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                other = ", or -1" if name == "ttl" else ""
                raise ConfigError(f"-cfg {name}={value}: it must be a number of seconds, {least} or more{other}.")
        named = [("service_account", self.service_account), ("priority_class", self.priority_class)]
        named += [("queue", self.queue), *(("pull_secrets", n) for n in self.pull_secrets)]
        named += [("env_secrets", n) for n in self.env_secrets]
        for option, value in named:
            if value:
                names.check(value, f"-cfg {option}={value}")


def check_part(part: Part) -> None:
    """Raise `ConfigError` for a part without an image, or with a variable that would expose a secret."""
    if not part.image:
        raise ConfigError("Kubernetes needs a container image with torchft_x in it: name one with --image.")
    for name, value in part.env.items():
        if _SECRET.search(name) and value and not value.startswith("/"):
            raise ConfigError(
                f"{name} in --env looks like a secret, and whoever may see pods could read it: put it into a Secret "
                f"(kubectl create secret generic mine --from-literal={name}=...) and name that with -cfg env_secrets=mine."
            )
