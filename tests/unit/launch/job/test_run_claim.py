"""Which of two jobs has a run directory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.job import run_claim
from torchft_x.launch.job.run_claim import Entry, PidScope, RunClaim, Verdict, judge, read
from torchft_x.timing import TIMING

HERE = PidScope("node1", "boot1", "pid:[1]")
ELSEWHERE = PidScope("node2", "boot2", "pid:[1]")
LOCAL = Entry(job="local_cwd://torchx/a", scope=HERE, local=True, beat="1")
REMOTE = Entry(job="slurm://torchx/7", scope=ELSEWHERE, local=False, beat="1")


def stay(seconds: float) -> bool:
    return False


@pytest.mark.parametrize(
    ("found", "job", "runs", "verdict"),
    [
        (None, "b", False, Verdict.FREE),
        (LOCAL, "b", True, Verdict.HELD),
        (LOCAL, "b", False, Verdict.FREE),  # its roles have been killed
        (LOCAL, LOCAL.job, True, Verdict.FREE),  # a standby lighthouse, or a role that was started again
        (dataclasses.replace(LOCAL, over=True), "b", True, Verdict.FREE),
        (dataclasses.replace(LOCAL, scope=PidScope("node1", "boot0", "pid:[1]")), "b", False, Verdict.FREE),  # rebooted
        (dataclasses.replace(LOCAL, scope=ELSEWHERE), "b", False, Verdict.WATCH),
        (
            dataclasses.replace(LOCAL, scope=PidScope("pod", "boot1", "pid:[2]")),
            "b",
            False,
            Verdict.WATCH,
        ),  # a container
        (REMOTE, "b", False, Verdict.WATCH),
        (REMOTE, REMOTE.job, False, Verdict.FREE),  # requeued, or started again on another node
        (dataclasses.replace(REMOTE, over=True), "b", False, Verdict.FREE),
        (dataclasses.replace(REMOTE, scope=HERE), "b", True, Verdict.HELD),
        (dataclasses.replace(REMOTE, scope=HERE), "b", False, Verdict.WATCH),  # roles on other nodes may run
        (LOCAL, "", True, Verdict.HELD),  # a job that is about to be submitted
    ],
)
def test_whose_it_is(found: Entry | None, job: str, runs: bool, verdict: Verdict) -> None:
    assert judge(found, job, HERE, lambda _: [7] * runs) is verdict


def claim(run_dir: Path, job: str) -> RunClaim:
    return RunClaim(run_dir, {env.TORCHX_JOB_ID: job})


def write(run_dir: Path, entry: Entry) -> None:
    (run_dir / "claim").write_text(json.dumps(dataclasses.asdict(entry)))


def test_it_is_taken_and_may_be_taken_again_by_the_same_job(tmp_path: Path) -> None:
    for _ in range(2):
        claim(tmp_path / "run", "slurm://torchx/7").take(stay)
    found = read(tmp_path / "run" / "claim")
    assert found is not None
    assert (found.job, found.over, found.local) == ("slurm://torchx/7", False, False)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["claim"]


def test_a_claim_that_is_over_is_taken_at_once(tmp_path: Path) -> None:
    first = claim(tmp_path, "slurm://torchx/7")
    first.take(stay)
    first.end(over=True)
    claim(tmp_path, "slurm://torchx/8").take(lambda _: pytest.fail("it waits"))
    found = read(tmp_path / "claim")
    assert found is not None
    assert (found.job, found.over) == ("slurm://torchx/8", False)


def test_one_that_is_renewed_elsewhere_is_held(tmp_path: Path) -> None:
    """The judge of a network file system: no lock, no clock of another host."""
    write(tmp_path, REMOTE)
    beats = iter(range(2, 100))

    def renew(seconds: float) -> bool:
        write(tmp_path, dataclasses.replace(REMOTE, beat=str(next(beats))))
        return False

    with pytest.raises(
        ConfigError, match=r"slurm://torchx/7 \(on host node2\). Name another --run_dir, .* torchx cancel|`"
    ):
        claim(tmp_path, "slurm://torchx/8").take(renew)
    with pytest.raises(ConfigError, match="Another job runs in the run directory"):
        claim(tmp_path, "local_cwd://torchx/b").take(renew)
    assert read(tmp_path / "claim").job == REMOTE.job  # type: ignore[union-attr]


def test_one_that_nobody_renews_is_taken_after_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, REMOTE)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    claim(tmp_path, "slurm://torchx/8").take(wait)
    assert sum(waited) >= TIMING.run_watch
    assert read(tmp_path / "claim").job == "slurm://torchx/8"  # type: ignore[union-attr]
    assert capsys.readouterr().err.count("its end is not written there") == 1


def test_who_is_told_to_stop_meanwhile_takes_nothing(tmp_path: Path) -> None:
    write(tmp_path, REMOTE)
    claim(tmp_path, "slurm://torchx/8").take(lambda _: True)
    assert read(tmp_path / "claim") == REMOTE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": 1}', "\0" * 10_000])
def test_what_can_not_be_understood_is_nobodys(text: str, tmp_path: Path) -> None:
    (tmp_path / "claim").write_text(text)
    assert read(tmp_path / "claim") is None
    claim(tmp_path, "slurm://torchx/8").take(stay)
    assert read(tmp_path / "claim") is not None


def test_without_a_job_nothing_is_claimed(tmp_path: Path) -> None:
    claim(tmp_path, "").take(stay)
    assert list(tmp_path.iterdir()) == []


def test_a_role_ends_when_another_job_has_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_claim, "TIMING", dataclasses.replace(TIMING, run_beat=0.01))
    mine, reported = claim(tmp_path, "slurm://torchx/7"), []
    mine.take(stay)
    beat = read(tmp_path / "claim").beat  # type: ignore[union-attr]
    mine.keep(reported.append)
    wait_for(lambda: read(tmp_path / "claim").beat != beat, 10, "a renewal")  # type: ignore[union-attr]

    def another_writes() -> (
        bool
    ):  # again and again, as a job does: once would be lost between a look and a renewal of ours
        write(tmp_path, dataclasses.replace(REMOTE, job="slurm://torchx/8"))
        return bool(reported)

    wait_for(another_writes, 10, "the end of the role")
    assert reported == [mine.lost]
    assert mine.lost.startswith("Another job has taken over the run directory")
    mine.end(over=True)
    assert read(tmp_path / "claim").job == "slurm://torchx/8"  # type: ignore[union-attr]
