"""From a component's parameters to an app: what the textual defs in components.py call."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Any

from torchx import specs

from torchft_x import env as environment
from torchft_x.errors import TorchftXError
from torchft_x.launch.app import to_app
from torchft_x.launch.checks import check_script
from torchft_x.launch.job import FtJob

AUTO = "auto"  # --lighthouse: TORCHFT_LIGHTHOUSE if that is set, else the job brings its own


def component(
    script_args: tuple[str, ...], *, lighthouse: str, env: Mapping[str, str] | None, run_dir: str, **parameters: Any
) -> specs.AppDef:
    """The app of a component's call. Raises `SystemExit` with one sentence for a user's mistake."""
    try:
        address, source = lighthouse_address(lighthouse, env or {})
        job = FtJob(
            script_args=script_args,
            env=env or {},
            lighthouse=address,
            lighthouse_from=source,
            run_dir=os.path.abspath(run_dir) if run_dir else new_run_dir(parameters["name"]),
            # without an image the job runs on this file system: with this very interpreter, on PATH or not
            python="python" if parameters["image"] else sys.executable,
            **parameters,
        )
        if not job.image:
            check_script(job.script)
        return to_app(job)
    except TorchftXError as e:
        raise SystemExit(f"torchft_x: {e}") from None


def lighthouse_address(parameter: str, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The address (None: the job brings its own) and what it came from. Parameter beats ``--env`` beats environment."""
    if parameter != AUTO:
        return parameter, "--lighthouse"
    given = env.get(environment.LIGHTHOUSE) or environment.read(environment.LIGHTHOUSE)
    return given, environment.LIGHTHOUSE


def new_run_dir(name: str) -> str:
    """A path nobody else has; nothing is made yet, a dry-run asks too."""
    return os.path.abspath(f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(3)}")
