"""Slurm's commands as scripts that answer what was recorded, late or not at all: nothing is lost, nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.errors import ConfigError
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.job.health import UNHEALTHY
from torchft_x.launch.job.index import Index
from torchft_x.launch.slurm import commands, store
from torchft_x.launch.slurm.build import Request, build
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest
from torchft_x.launch.slurm.status import StatusReader
from torchft_x.launch.slurm.submit import cancel, launch, read_script
from torchft_x.launch.slurm.watch.script_commands import end_app
from torchft_x.observe.events import EventLog
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, open_lease

SCRIPT = Path(__file__).parents[4] / "scripts/train_ddp.py"
# what sbatch reads, as rows of squeue that have just been queued
_QUEUE = r"""
n=$(cat $D/n 2>/dev/null || echo 2); n=$((n + 1)); echo $n > $D/n
text=$(cat); comment=$(sed -n 's/^#SBATCH --comment=//p' <<< "$text"); name=$(sed -n 's/^#SBATCH --job-name=//p' <<< "$text")
for t in $(sed -n 's/^#SBATCH --array=//p' <<< "$text" | tr ',-' '  '); do
  echo "${n}_$t|$n|0|PENDING|0||N/A|None|$name|$comment|" >> $D/queue
done
"""
SBATCH = f'[ "$1" = --test-only ] && exit 0\n{_QUEUE}\necho "$n;mini"'


class Cluster:
    """Its commands are in `folder`, and keep the queue in a file there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.command("sbatch", SBATCH)
        self.command("squeue", "cat $D/queue 2>/dev/null || true")
        self.command("sinfo", 'echo "main|main*|up|4|infinite"')
        self.command("scancel", 'echo "$@" >> $D/cancelled; : > $D/queue')

    def command(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/bash\nD={self.folder}\n{text}\n")
        path.chmod(0o755)

    @property
    def cancelled(self) -> list[str]:
        path = self.folder / "cancelled"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv(env.STATE_HOME, str(tmp_path / "state"))
    return Cluster(tmp_path / "bin", monkeypatch)


def request(tmp_path: Path, sizes: tuple[int, ...] = (1, 1), app_id: str = "ddp-x", **cfg: Any) -> Request:
    run_dir = str(tmp_path / "run")
    app = ft_app(str(SCRIPT), replicas=2, workers_by_group=sizes, run_dir=run_dir)
    return build(app, cfg, app_id=app_id, run_dir=run_dir)


def test_ids_of_a_cluster_of_a_federation(cluster: Cluster, tmp_path: Path) -> None:
    manifest = launch(request(tmp_path), Controller())
    assert manifest.jobs == ("3_0", "3_1")
    assert store.read(tmp_path / "run") == manifest
    with pytest.raises(ConfigError, match=r"ddp-x goes on in the run directory .* \(3_0 is PENDING\)"):
        launch(request(tmp_path), Controller())


def test_an_sbatch_that_hangs_after_slurm_has_taken_the_job(cluster: Cluster, tmp_path: Path) -> None:
    cluster.command("sbatch", f'[ "$1" = --test-only ] && exit 0\n{_QUEUE}\nexec sleep 600')
    assert launch(request(tmp_path), Controller(timeout=1.0)).jobs == ("3_0", "3_1")
    assert cluster.cancelled == []


def test_half_a_job_is_taken_back(cluster: Cluster, tmp_path: Path) -> None:
    quota = "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1"
    cluster.command("sbatch", f'[ "$1" = --test-only ] && exit 0\n[ -e $D/n ] && {{ {quota}; }}\n{_QUEUE}\necho $n')
    with pytest.raises(SlurmError, match="QOSMaxSubmitJobPerUserLimit"):
        launch(request(tmp_path, sizes=(1, 2)), Controller())
    assert cluster.cancelled == ["3_0"]
    assert store.read(tmp_path / "run").cancelled


def test_more_than_there_is(cluster: Cluster, tmp_path: Path) -> None:
    cluster.command("sinfo", 'echo "main|main*|up|1|infinite"; echo "shut|shut|down|9|infinite"')
    with pytest.raises(ConfigError, match="needs 2 nodes at the same time, and the partition main has 1"):
        launch(request(tmp_path, exclusive=True), Controller())
    with pytest.raises(ConfigError, match="there is none; the cluster has main, shut"):
        launch(request(tmp_path, partition="nope"), Controller())
    with pytest.raises(ConfigError, match="closed"):
        launch(request(tmp_path, partition="shut"), Controller())


def test_what_slurm_takes_and_never_starts_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.command("sinfo", 'echo "main|main*|up|4|1-00:00:00"')
    with pytest.raises(ConfigError, match="time=25:00:00: the partition main ends jobs after 1-00:00:00"):
        launch(request(tmp_path, time="25:00:00"), Controller())
    cluster.command("srun", 'echo "--other=x"')
    with pytest.raises(ConfigError, match="this cluster's srun has no --container-image"):
        launch(request(tmp_path, **{"container-image": "reg#a"}), Controller())


def test_variables_that_would_change_a_submission_do_not_reach_sbatch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed inside an allocation, or with defaults for other jobs."""
    for name in ("SLURM_MEM_PER_CPU", "SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SLURM_CONF", "SBATCH_ACCOUNT", "TOKEN"):
        monkeypatch.setenv(name, "1")
    cluster.command("sbatch", 'env > $D/environ; echo "3"')
    Controller().submit("")
    names = {line.partition("=")[0] for line in (cluster.folder / "environ").read_text().splitlines()}
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "TOKEN"} <= names
    assert not {"SLURM_MEM_PER_CPU", "SBATCH_ARRAY_INX", "SBATCH_EXPORT"} & names


def test_what_is_known_when_slurm_knows_nothing(cluster: Cluster, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    launch(request(tmp_path), Controller())

    def looked() -> tuple[str, str]:
        found = StatusReader(Controller(), index).poll("ddp-x")
        return ("none", "") if found is None else (found.state, found.trouble)

    assert looked() == ("PENDING", "")  # not in the index: found by the comment of its jobs
    index.add("ddp-x", str(tmp_path / "run"))
    queue = (cluster.folder / "queue").read_text()
    (cluster.folder / "queue").write_text("")
    assert looked()[0] == "UNKNOWN"
    assert StatusReader(Controller(), index).poll("another") is None
    store.change(tmp_path / "run", lambda now: dataclasses.replace(now, outcome=0))
    assert looked() == ("SUCCEEDED", "")  # after MinJobAge
    cluster.command("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    state, trouble = looked()
    assert state == "SUCCEEDED"
    assert "Unable to contact" in trouble
    store.change(tmp_path / "run", lambda now: dataclasses.replace(now, outcome=None))
    assert looked()[0] == "UNKNOWN"
    cluster.command("squeue", "cat $D/queue")
    (cluster.folder / "queue").write_text(queue)
    store.path_of(tmp_path / "run").write_text("{torn")
    state, trouble = looked()
    assert state == "PENDING"
    assert "torn" in trouble
    assert [poll.app for poll in StatusReader(Controller(), index).apps()] == ["ddp-x"]


def test_a_submission_that_was_interrupted_is_found_and_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    launch(request(tmp_path), Controller())
    run_dir = tmp_path / "run"
    lost = store.read(run_dir).parts[0]
    store.change(run_dir, lambda now: now.with_part(dataclasses.replace(lost, job=SUBMITTING)))
    found = StatusReader(Controller(), Index(tmp_path / "index")).poll("ddp-x")
    assert found is not None
    assert found.rows["trainer/0"] is not None  # by its ticket
    queue = (cluster.folder / "queue").read_text()
    others = [line.replace("|PENDING|", "|RUNNING|") for line in queue.splitlines(True) if not line.startswith("3_0|")]
    (cluster.folder / "queue").write_text("".join(others))  # as long as one is being submitted anew
    heard = {"start": ["3_1", 0], "came": [0], "nodes": [], "excluded": [], "submitted": []}
    (store.folder(run_dir) / store.WATCHER).write_text(json.dumps({"parts": {"trainer/1": heard}}))
    found = StatusReader(Controller(), Index(tmp_path / "index")).poll("ddp-x")
    assert found is not None
    assert (found.state, found.part_status(found.manifest.parts[0]).state) == ("RUNNING", "PENDING")  # type: ignore[union-attr]
    (cluster.folder / "queue").write_text(queue)
    cancel(run_dir, Controller())
    assert cluster.cancelled == ["3_0", "3_1"]
    with pytest.raises(ConfigError, match="has ended"):
        commands.resize(run_dir, 3, Controller())


def test_the_verdict_is_written_down_once_and_what_is_queued_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    """A lighthouse that was told to end, by scancel or a requeue, has given none."""
    run_dir = str(tmp_path / "run")
    register = _register(launch(request(tmp_path), Controller()))
    held = LeaseEntry(1, 0, "aa")
    events = EventLog(run_dir, "lighthouse")
    events.emit("exit", code=0, reason="All 2 groups have finished.")
    events.close()
    assert register.swap(register.read(), held)
    end_app(run_dir, "3_0", Controller())
    assert (store.read(run_dir).outcome, cluster.cancelled) == (None, [])
    assert register.swap(held, dataclasses.replace(held, count=1, verdict=0))
    for _ in range(2):
        end_app(run_dir, "3_0", Controller())
        assert (store.read(run_dir).outcome, cluster.cancelled) == (0, ["3_1"])
    assert store.read(run_dir).why == "All 2 groups have finished."


def test_a_job_with_a_lost_node_is_told_and_cancelled(cluster: Cluster) -> None:
    """Whatever the signal has come to."""
    Controller().kill("3_0")
    assert cluster.cancelled == ["--batch", "--signal=USR2", "3_0", "3_0"]
    cluster.command(
        "scancel",
        'echo "$@" >> $D/cancelled; [ "$1" != --batch ] || { echo "Job/step already completing" >&2; exit 1; }',
    )
    Controller().kill("4_0")
    assert cluster.cancelled[4:] == ["--batch", "--signal=USR2", "4_0", "4_0"]


def test_a_part_whose_time_is_nearly_up_is_submitted_anew_and_ended(cluster: Cluster, tmp_path: Path) -> None:
    """Not requeued, which is to wait for a BeginTime; and once, whoever asks again."""
    launch(request(tmp_path), Controller())
    run_dir = str(tmp_path / "run")
    for _ in range(2):
        assert main(["slurm-again", run_dir, "trainer", "1", "3_1", "0"]) == 0
    assert store.read(run_dir).jobs == ("3_0", "4_1")
    assert store.read(run_dir).parts[1].earlier == ("3_1",)
    assert cluster.cancelled == ["--signal=TERM", "3_1"]
    cluster.command("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    assert main(["slurm-again", run_dir, "trainer", "0", "3_0", "0"]) == 1  # the script requeues itself
    assert store.read(run_dir).jobs == ("3_0", "4_1")
    cancel(run_dir, Controller())
    assert main(["slurm-again", run_dir, "trainer", "0", "3_0", "0"]) == 0  # not once more
    assert store.read(run_dir).jobs == ("3_0", "4_1")


def test_a_job_in_the_run_directory_of_one_that_has_ended_takes_nothing_over(cluster: Cluster, tmp_path: Path) -> None:
    """It found the verdict of the first one in the lease, and ended at once; and its lost groups and bad nodes."""
    run_dir = str(tmp_path / "run")
    first = launch(request(tmp_path), Controller())
    register = _register(first)
    assert register.swap(register.read(), LeaseEntry(1, 0, "aa", verdict=1))
    store.tell_groups(first, {"1": "no host is left for it"})
    (store.folder(run_dir) / UNHEALTHY).mkdir()
    (store.folder(run_dir) / UNHEALTHY / "n1").write_text("3_1-r0 the disk is full\n")
    (store.folder(run_dir) / store.WATCHER).write_text('{"parts": {}}')
    end_app(run_dir, "3_0", Controller())
    assert store.read(run_dir).outcome == 1

    second = launch(request(tmp_path, app_id="ddp-y"), Controller())
    assert _register(second).read() == LeaseEntry(0)
    assert store.lost_groups(run_dir) == store.unhealthy(run_dir) == store.watcher_note(run_dir) == {}
    end_app(run_dir, "4_0", Controller())
    assert store.read(run_dir).outcome is None


def _register(manifest: Manifest) -> LeaseDirectory:
    """The lease of the lighthouses that the groups' batch script starts."""
    words = shlex.split(read_script(manifest.groups[0].script), comments=True)
    folder = Path(words[words.index("--lease_dir") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    return open_lease(folder / "lease")
