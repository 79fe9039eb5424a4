"""Which of two jobs has a run directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.job import run_claim
from torchft_x.launch.job.run_claim import RunClaim


@pytest.mark.parametrize("word", ["supervise", "lighthouse", "accompany", "report"])
def test_a_role_of_a_job_of_this_host_is_found_by_its_environment(word: str, tmp_path: Path) -> None:
    """The launcher refuses before anything is started."""
    job = f"local_cwd://torchx/{os.getpid()}-{word}"
    RunClaim(tmp_path, {env.TORCHX_JOB_ID: job}).take(lambda _: False)
    run_claim.check(tmp_path)  # no role runs
    code = "import sys; print(flush=True); sys.stdin.read()"
    role = subprocess.Popen(
        [sys.executable, "-c", code, "torchft_x", word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, env.TORCHX_JOB_ID: job},
    )
    try:
        assert role.stdout is not None
        role.stdout.readline()
        if word == "report":
            run_claim.check(tmp_path)
        else:
            with pytest.raises(ConfigError, match=rf"{job} \(process {role.pid} on this host\).*Ctrl-C"):
                run_claim.check(tmp_path)
    finally:
        role.communicate()
