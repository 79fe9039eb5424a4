"""The two libraries: their Pythons, and the commands and environments of their processes, with their own defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.interpreters import PEER_PYTHON
from torchft_x import env

ROOT = Path(__file__).resolve().parents[1]
TRAINER = str(ROOT / "benchmarks" / "trainer.py")
WORKER = str(ROOT / "benchmarks" / "worker.py")

# Environment of a trainer of either library, as our launcher sets it: one thread on a small machine, and an allocator
# that keeps its pages (which also makes torch's own DDP faster).
TRAINERS = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
}
_PROBE = """
import importlib.metadata as m, json
print(json.dumps({n: m.version(n) for n in ("torchft-nightly", "torch")}))
"""


@dataclass(frozen=True)
class Library:
    """One of the two libraries."""

    key: str
    """``ours`` or ``peer``."""
    module: str
    python: str
    versions: dict[str, str]

    @property
    def is_ours(self) -> bool:
        return self.key == "ours"

    def environment(self, group: str | None = None, **more: str) -> dict[str, str]:
        """Return the environment of a process of this library; with `group`, of a trainer of that group."""
        out = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHFT_", "TORCHELASTIC_", "MASTER_"))}
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE"):
            out.pop(name, None)
        if self.is_ours:  # the peer's process must not import torchft_x
            out["PYTHONPATH"] = str(ROOT)
            out[env.ADVERTISE_HOST] = "127.0.0.1"
        if group is not None:
            out |= TRAINERS | {"REPLICA_GROUP_ID": group}
        return out | more

    def lighthouse(self, bind: str, *more: str) -> list[str]:
        program = ["-m", "torchft_x", "lighthouse"] if self.is_ours else [_script(self.python, "torchft_lighthouse")]
        return [self.python, *program, "--min_replicas", "1", "--bind", bind, *more]

    def launcher(self, group: str, groups: int, run_dir: Path, script: list[str], ranks: int = 1) -> list[str]:
        """Return the launcher's command, as in the library's component. It restarts the group when a trainer dies."""
        if not self.is_ours:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
            return [self.python, *torchrun, "--max_restarts", "1000", *script]
        which = ["--group", group, "--groups", str(groups), "--max_restarts", "1000", "--run_dir", str(run_dir)]
        which += ["--workers", str(ranks)] if ranks > 1 else []
        return [self.python, "-m", "torchft_x", "supervise", *which, "--", *script]


def _script(python: str, name: str) -> str:
    """Return the path of a console script beside that interpreter."""
    return str(Path(python).parent / name)


def ours() -> Library:
    import importlib.metadata

    from torchft_x import __version__

    return Library(
        "ours", "torchft_x", sys.executable, {"torchft_x": __version__, "torch": importlib.metadata.version("torch")}
    )


def find_peer() -> Library | str:
    """Return torchft-nightly in its own environment, or a sentence with the reason why it is missing."""
    python = env.read(PEER_PYTHON)
    if python is None:
        python = str(ROOT / ".venv-peer" / "bin" / "python")  # as ./scripts/test --extended makes it
        if not Path(python).exists():
            return (
                f"torchft-nightly is not here: {PEER_PYTHON} is not set and there is no .venv-peer "
                "(./scripts/test --extended makes it)"
            )
    try:
        out = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"torchft-nightly can't be run: {python}: {e}"
    if out.returncode != 0:
        return f"torchft-nightly is not installed for {python}"
    return Library("peer", "torchft", python, json.loads(out.stdout))
