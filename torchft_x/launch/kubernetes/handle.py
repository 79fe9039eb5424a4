"""A job's handle on a command line, and the job that it names. Imports neither TorchX nor the client."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchft_x.errors import ConfigError

_SCHEME = "kubernetes_ft://"


@dataclass(frozen=True)
class Handle:
    namespace: str | None  # None: that of the kubeconfig's context
    app: str


def is_handle(word: str) -> bool:
    return word.startswith(_SCHEME)


def parse(word: str) -> Handle:
    """``kubernetes_ft://SESSION/NAMESPACE:APP`` as `torchx run` prints it, or ``kubernetes_ft://NAMESPACE/APP``; without a
    namespace the context's. Raises `ConfigError`.
    """
    first, _, rest = word.removeprefix(_SCHEME).rpartition("/")
    namespace, colon, app = rest.rpartition(":")
    namespace = namespace if colon else first
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", app) or not re.fullmatch(r"[-a-z0-9]*", namespace):
        raise ConfigError(
            f"{word[:300]} names no job: write {_SCHEME}NAMESPACE/APP, or the handle that `torchx run` has printed."
        )
    return Handle(namespace or None, app)
