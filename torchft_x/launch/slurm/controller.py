"""Client of Slurm's own commands, in text formats. Each call has a timeout; an error is one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchft_x import env
from torchft_x.errors import TorchftXError
from torchft_x.launch.slurm.rules.queue import Row, output_format, parse_rows, parse_submitted
from torchft_x.timing import TOOL

_GONE = ("Invalid job id", "no longer pending", "already completed", "already finished", "Job/step already completing")
_SET_BY_SCRIPTS = tuple(
    f"SBATCH_{name}"
    for name in (
        "ARRAY_INX", "JOB_NAME", "EXPORT", "EXPORT_FILE", "OPEN_MODE", "NO_REQUEUE", "REQUEUE", "WAIT", "WAIT_ALL_NODES",
        "OUTPUT", "ERROR", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE",
    )
)  # fmt: skip
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_UNCERTAIN = ("timed out", "Unable to contact", "Communication", "Zero Bytes", "Connection reset", "Connection refused")


class SlurmError(TorchftXError, RuntimeError):
    """Failure of a Slurm command, with Slurm's own message. `uncertain` means that it may have taken effect nevertheless."""

    exit_code = 1

    def __init__(self, sentence: str, *, uncertain: bool = False) -> None:
        super().__init__(sentence)
        self.uncertain = uncertain


class Controller:
    """Client of the cluster to which Slurm's commands on this machine connect. It caches nothing: every call asks Slurm."""

    def __init__(self, timeout: float = TOOL) -> None:
        self._timeout = timeout

    # --- what there is -------------------------------------------------------------------------------------------------

    def rows(self, *, app: str | None = None) -> list[Row]:
        """Return this user's torchft_x jobs, one row per task of an array. Ended ones are included until MinJobAge.

        With `app`, return only that app's. Raise `SlurmError` on a failure.
        """
        rows = parse_rows(self._run(["squeue", "--noheader", "--states=all", "--me", f"--Format={output_format()}"]))
        return [row for row in rows if row.app and app in (None, row.app)]

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions, by name."""
        return _partitions(self._run(["sinfo", "--noheader", "--format=%R|%P|%a|%D|%l"]))

    def takes_containers(self) -> bool:
        """Return whether srun has pyxis' option --container-image."""
        return "--container-image" in self._run(["srun", "--help"])

    # --- what is done --------------------------------------------------------------------------------------------------

    def submit(self, script: str) -> str:
        """Submit a batch script, and return the id of the job or array. The script is piped: no command line shows it.

        Raise `SlurmError` on a failure. If it is `uncertain` the job may exist, and launch/slurm/submit.py searches for it.
        """
        printed = self._run(["sbatch", "--parsable"], script)
        try:
            return parse_submitted(printed)
        except ValueError:
            raise SlurmError(f"sbatch named no job; it said {printed.strip()[:200]!r}.", uncertain=True) from None

    def test(self, script: str) -> None:
        """Check that Slurm would accept the script: partition, account, limits, sizes. Raise `SlurmError` if not.

        Nothing is queued.
        """
        self._run(["sbatch", "--test-only"], script)

    def exclude(self, job: str, nodes: Sequence[str], *, start: bool = False) -> bool:
        """Exclude only these nodes, or none, for a waiting job. With `start`, end its wait for BeginTime.

        Return False if it does not wait (any more), or if Slurm is still cleaning up its last run: try again.
        """
        now = ["StartTime=now"] if start else []
        return self._on("update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}", *now)

    def reschedule(self, job: str, name: str) -> bool:
        """Have Slurm's main scheduler make a round, as after every update. This update sets the job's name, which is `name`."""
        return self._on("update", f"JobId={job}", f"JobName={name}")

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel these jobs. Ignore unknown and ended ones; raise `SlurmError` on a failure."""
        wanted = sorted(set(ids))
        for at in range(0, len(wanted), 500):  # the length of a command line is limited
            self._run(["scancel", *wanted[at : at + 500]])

    def end_step(self, job: str) -> None:
        """Send SIGTERM to the job's steps, not to its batch script, which ends after them. Raise `SlurmError` on a failure."""
        self._run(["scancel", "--signal=TERM", job])

    def kill(self, job: str) -> None:
        """Cancel a job without letting its batch script wait for its nodes (`script`). Raise `SlurmError` on a failure.

        For a node that doesn't answer the script would wait as long as Slurm lets it (KillWait), and hold the other nodes.
        """
        try:
            self._run(["scancel", "--batch", "--signal=USR2", job])
        except SlurmError as e:
            if e.uncertain:
                raise
        self.cancel([job])  # a job ended by its script alone would be submitted anew, and it may have ended before

    def _on(self, *words: str) -> bool:
        try:
            self._run(["scontrol", *words])
        except SlurmError as e:
            if any(word.lower() in str(e).lower() for word in _GONE):
                return False
            raise
        return True

    def _run(self, command: list[str], given: str | None = None) -> str:
        name = command[0]
        try:
            done = subprocess.run(
                command,
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout,
                env=_environ(),
            )
        except FileNotFoundError:
            raise SlurmError(
                f"Slurm's {name} is not on this machine's PATH; do this on a machine of the cluster, or choose another "
                "scheduler with -s."
            ) from None
        except OSError as e:
            raise SlurmError(f"Slurm's {name} can't be run ({e.strerror}).") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"Slurm's {name} did not answer within {self._timeout:g} s; the controller may be down: `scontrol ping`.",
                uncertain=True,
            ) from None
        if done.returncode != 0:
            said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[:500]
            uncertain = any(word in said for word in _UNCERTAIN)
            raise SlurmError(f"Slurm's {name} failed: {said or f'exit code {done.returncode}'}", uncertain=uncertain)
        return done.stdout


def _environ() -> dict[str, str]:
    """Return the environment without variables that would change our commands' output, or override options of our scripts."""
    kept = {
        name: value
        for name, value in env.everything().items()
        if name in _KEPT or not (name.startswith(("SLURM_", "SQUEUE_", "SINFO_")) or name in _SET_BY_SCRIPTS)
    }
    return {**kept, "SLURM_BITSTR_LEN": "0"}  # lists of tasks are not truncated


class Partition(NamedTuple):
    """Size and limits of a partition."""

    name: str
    default: bool
    up: bool
    nodes: int
    """Number of all its nodes, those that are down or busy included."""
    limit: str
    """Time limit of a job, in sinfo's format (``1-00:00:00``, ``infinite``)."""


def _partitions(text: str) -> dict[str, Partition]:
    found: dict[str, Partition] = {}
    for line in text.splitlines():  # one for each kind of node
        name, marked, up, nodes, limit = (part.strip() for part in line.split("|"))
        before = found[name].nodes if name in found else 0
        found[name] = Partition(name, marked.endswith("*"), up == "up", before + int(nodes), limit)
    return found
