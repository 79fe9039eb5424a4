"""Groups that train apart, as a user starts them: the mission's configurations, the component, and a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, SMALL, running
from tests.journeys.test_kills import script
from tests.torch.train.test_fault_tolerance import FRAGMENTS, ISLANDS, ON_CPU

pytestmark = [pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("config", "ranks"),
    [(FRAGMENTS, (1, 1)), (ISLANDS, (1, 2)), (ON_CPU, (1, 1))],
    ids=["fragments", "islands", "on CPU"],
)
def test_the_missions_configurations_run_as_they_stand(config: str, ranks: tuple[int, int], tmp_path: Path) -> None:
    """A lighthouse, and one torchrun per group with its number in a flag."""
    file, run_dir, address = tmp_path / "debug.toml", tmp_path / "run", tmp_path / "address"
    file.write_text(config)
    mark = {"TORCHFT_X_RUN_DIR": str(run_dir)}  # only so that whatever is left can be found and killed
    lighthouse = [str(BIN / "python"), "-m", "torchft_x", "lighthouse", "--min_replicas", "2", "--bind", "[::]:0"]
    lighthouse += ["--join_timeout_ms", "10000", "--address_file", str(address)]

    def group(number: int) -> list[str]:
        run = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", str(ranks[number]), "scripts/train_diloco.py"]
        run += ["--config", str(file), f"--fault_tolerance.replica_id={number}", "--fault_tolerance.group_size=2"]
        run += ["--training.steps=20", "--training.mock_data", "--dump-params", str(tmp_path / "dumps"), *SMALL]
        return run

    with running(lighthouse, tmp_path / "lighthouse.log", run_dir, **mark) as service:
        service.wait_for(address.exists, 15, "the lighthouse serves")
        where = {"TORCHFT_LIGHTHOUSE": address.read_text().strip(), **mark}
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
    checked = script("check_params.py", tmp_path / "dumps")
    assert checked.returncode == 0, checked.stdout
    assert "ok: 4 dumps" in checked.stdout or "ok: 8 dumps" in checked.stdout


ISLAND = ("--fault_tolerance.rank0_synchronization_only=true",)


@pytest.mark.parametrize(
    ("method", "first", "then", "more"),
    [("diloco", (2, 2), (3, 1), ()), ("local_sgd", (2, 1), (1, 2), ()), ("diloco", (2, 1), (1, 2), ISLAND)],
    ids=["diloco", "local_sgd", "islands"],
)
def test_a_checkpoint_goes_on_with_other_numbers(
    method: str, first: tuple[int, int], then: tuple[int, int], more: tuple[str, ...], tmp_path: Path
) -> None:
    """(Groups, workers of each). A group that begins with other weights than the saved ones would fail check_params."""
    url = f"file://{tmp_path}/saved"
    for name, (groups, ranks), steps in (("first", first, 8), ("second", then, 16)):
        run_dir = tmp_path / name
        command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:diloco", "--sync_steps", "4"]
        command += ["--replicas", str(groups), "--workers_per_replica", str(ranks), "--run_dir", str(run_dir), "--"]
        command += ["--fault_tolerance.semi_sync_method", method, "--steps", str(steps), "--min-groups", str(groups)]
        command += ["--checkpoint", url, "--dump-params", str(tmp_path / f"{name}-dumps"), *more, *SMALL]
        with running(command, tmp_path / f"{name}.log", run_dir) as job:
            assert job.wait(120) == 0, job.output()[-3000:]
        checked = script("check_params.py", tmp_path / f"{name}-dumps")
        assert checked.returncode == 0, checked.stdout
    assert f"resumed from {url} at step 3" in job.output()  # two exchanges, and the step before them
    assert re.search(r"step +16 \| exchange 4 ", job.output())
