"""Parses a job's handle from a command line. Imports neither TorchX nor the Kubernetes client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from torchft_x.errors import ConfigError

_SCHEME = "kubernetes_ft://"


@dataclass(frozen=True)
class Handle:
    namespace: str | None  # None for the namespace of the kubeconfig's context
    app: str
    context: str | None = None  # context of the kubeconfig; None for the current one


def is_handle(word: str) -> bool:
    return word.startswith(_SCHEME)


def parse(word: str) -> Handle:
    """Parse ``kubernetes_ft://SESSION/NAMESPACE:APP``, as `torchx run` prints it, or ``kubernetes_ft://NAMESPACE/APP``.

    The namespace may be missing, and both forms may end with ``@CONTEXT``. Raise `ConfigError` for anything else.
    """
    word, _, context = word.partition("@")
    first, _, rest = word.removeprefix(_SCHEME).rpartition("/")
    namespace, colon, app = rest.rpartition(":")
    namespace = namespace if colon else first
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", app) or not re.fullmatch(r"[-a-z0-9]*", namespace):
        raise ConfigError(
            f"{word[:300]} names no job: write {_SCHEME}NAMESPACE/APP, or the handle that `torchx run` has printed."
        )
    return Handle(namespace or None, app, unquote(context) or None)


def app_id(namespace: str, app: str, context: str | None) -> str:
    """Return the job's TorchX app id. `context` is the one given at the submission; None, the current one, adds nothing."""
    return f"{namespace}:{app}" + (f"@{quote(context, safe='')}" if context else "")
