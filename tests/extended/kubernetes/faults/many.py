"""The objects of many groups: how long kubernetes_ft takes to make, see and remove them, and how often it asks the API server."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch

from tests.extended.kubernetes.cluster import IMAGE
from tests.extended.kubernetes.shell import Shell
from torchft_x import env
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.app import request, with_token
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.rules.parts import PodSettings
from torchft_x.launch.kubernetes.rules.state import PENDING

Json = dict[str, Any]
T = TypeVar("T")


class _Counted(Cluster):
    """Counts what it asks; nothing is asked twice by itself."""

    asked = 0

    def _call(self, method: Any, *words: str, **options: Any) -> Any:
        self.asked += 1
        return super()._call(method, *words, **options)


def many(shell: Shell, groups: int) -> Json:
    """Of a job of which no pod finds a node: seconds and requests to make it, to see how it does, and to cancel it."""
    with patch.dict(os.environ, {env.KUBECONFIG: str(shell.kubeconfig)}):
        cluster = _Counted()
    app = ft_app("scripts/train_ddp.py", image=IMAGE, replicas=groups, lighthouse="auto")
    made = request(app, secrets.token_hex(4), PodSettings(node_selector={"no": "such"}), "nvidia.com/gpu")
    found: Json = {"groups": groups, "objects": len(made.objects)}

    def timed(what: str, act: Callable[[], T]) -> T:
        began, asked = time.monotonic(), cluster.asked
        value = act()
        found[what] = {"seconds": round(time.monotonic() - began, 3), "requests": cluster.asked - asked}
        return value

    timed("submit", lambda: jobs.submit(cluster, with_token(made)))
    seen = timed("status", lambda: jobs.find(cluster, made.app))
    assert seen is not None
    assert (seen.state, len(seen.parts)) == (PENDING, groups + 1)
    assert timed("cancel", lambda: jobs.cancel(cluster, made.app))
    return found


def told(found: Json) -> str:
    """A sentence of it."""
    costs = [f"{what} {found[what]['seconds']:.2f} s, {found[what]['requests']} requests" for what in _STEPS]
    return f"{found['objects']} objects of {found['groups']} groups: {'; '.join(costs)}"


_STEPS = ("submit", "status", "cancel")
