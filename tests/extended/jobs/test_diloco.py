"""Groups that train apart, as a user starts them: the mission's configurations, checkpoints, and kills of all workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.extended.serving import lighthouse
from tests.journeys.jobs import SMALL, WARM, running
from tests.journeys.test_kill_all import killed
from tests.journeys.test_kills import script
from tests.started import BIN
from tests.torch.train.test_fault_tolerance import FRAGMENTS, ISLANDS
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]


def diloco(run_dir: Path) -> list[str]:
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:diloco", "--sync_steps", "4"]
    return [*command, "--script", "benchmarks/trial/diloco.py", "--run_dir", str(run_dir)]


@pytest.mark.parametrize(("config", "ranks"), [(FRAGMENTS, (1, 1)), (ISLANDS, (1, 2))], ids=["fragments", "islands"])
def test_the_missions_configurations_run_as_they_stand(config: str, ranks: tuple[int, int], tmp_path: Path) -> None:
    """A lighthouse, and one torchrun per group with its number in a flag."""
    file, run_dir = tmp_path / "debug.toml", tmp_path / "run"
    file.write_text(config)
    mark = {env.RUN_DIR: str(run_dir)}  # only so that whatever is left can be found and killed

    def group(number: int) -> list[str]:
        run = [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc_per_node",
            str(ranks[number]),
            "benchmarks/trial/diloco.py",
        ]
        run += ["--config", str(file), f"--fault_tolerance.replica_id={number}", "--fault_tolerance.group_size=2"]
        run += ["--training.steps=20", "--training.mock_data", "--dump-params", str(tmp_path / "dumps"), *SMALL]
        return run

    with lighthouse(tmp_path, "--join_timeout_ms", "10000", min_replicas=2, **mark) as address:
        where = {env.LIGHTHOUSE: address, **mark}
        with (
            running(group(0), tmp_path / "0.log", run_dir, **where) as one,
            running(group(1), tmp_path / "1.log", run_dir, **where) as two,
        ):
            assert one.wait(90) == 0, one.output()[-3000:]
            assert two.wait(30) == 0, two.output()[-3000:]
            assert re.search(r"step +20 \| exchange \d+ \| loss .* groups 2", one.output()), one.output()[-3000:]
            assert re.search(
                r"sent [\d.,]+ .B in \d exchanges; per-step DDP would have sent [\d.,]+ .B, \d+ x", one.output()
            )
            assert "exchange" not in two.output()  # one group talks for both
    checked = script("check_params", tmp_path / "dumps")
    assert checked.returncode == 0, checked.stdout
    assert "ok: 4 dumps" in checked.stdout or "ok: 8 dumps" in checked.stdout


@pytest.mark.parametrize(
    ("first", "then", "island"), [((2, 2), (3, 1), False), ((2, 1), (1, 2), True)], ids=["sharded", "islands"]
)
def test_a_checkpoint_goes_on_with_other_numbers(
    first: tuple[int, int], then: tuple[int, int], island: bool, tmp_path: Path
) -> None:
    """(Groups, workers of each). A group that begins with other weights than the saved ones would fail check_params."""
    url = f"file://{tmp_path}/saved"
    for name, (groups, ranks), steps in (("first", first, 8), ("second", then, 16)):
        command = [*diloco(tmp_path / name), "--replicas", str(groups), "--workers_per_replica", str(ranks), "--"]
        command += [f"--fault_tolerance.rank0_synchronization_only={island}", "--steps", str(steps), *SMALL]
        command += ["--min-groups", str(groups), "--checkpoint", url, "--dump-params", str(tmp_path / f"{name}-dumps")]
        with running(command, tmp_path / f"{name}.log", tmp_path / name) as job:
            assert job.wait(120) == 0, job.output()[-3000:]
        checked = script("check_params", tmp_path / f"{name}-dumps")
        assert checked.returncode == 0, checked.stdout
    assert f"resumed from {url} at step 3" in job.output()  # two exchanges, and the step before them
    assert re.search(r"step +16 \| exchange 4 ", job.output())


def test_all_workers_are_killed_twice_and_go_on_from_an_exchange(tmp_path: Path) -> None:
    args = ["--steps", "100000", "--pace", "0.02", "--dump-params", str(tmp_path / "dumps"), *SMALL]
    killed([*diloco(tmp_path / "run"), "--", *args], tmp_path, tmp_path / "run", ranks=1, attempts=2, **WARM)
