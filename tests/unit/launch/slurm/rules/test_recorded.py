"""What two versions of Slurm say of the same jobs means the same."""

from __future__ import annotations

import pytest

from tests.unit.launch.slurm.rules.recorded import ALL
from tests.unit.launch.slurm.rules.test_restart import manifest, part
from torchft_x.launch.slurm.rules.manifest import rows_by_part
from torchft_x.launch.slurm.rules.queue import Row, parse_rows
from torchft_x.launch.slurm.rules.state import UNREPORTED, ending, part_status


def rows(version: str) -> dict[str, Row]:
    return {row.job: row for row in parse_rows(ALL[version])}


@pytest.mark.parametrize("version", ALL)
def test_every_task_has_a_row(version: str) -> None:
    found = rows(version)
    assert {row.app for row in found.values()} == {"app"}
    assert {row.run_dir for row in found.values()} == {"/runs/7"}
    for array, tasks in {"2": range(4), "3": (0, 2, 3), "18": range(0, 193, 8), "19": range(10), "20": (0,)}.items():
        assert [row.task for row in found.values() if row.array == array] == list(tasks)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(
    ("job", "state", "code", "end"),
    [
        ("6_0", "CANCELLED", 143, "lost"),
        ("12_0", "SUCCEEDED", 0, UNREPORTED),
        ("13_0", "FAILED", 1, UNREPORTED),
        ("14_0", "FAILED", 2, "lost"),
        ("15_0", "FAILED", 137, "anew"),
        ("16_0", "FAILED", 137, "anew"),
        ("21_0", "RUNNING", 0, None),
        ("21_1", "PENDING", 0, None),
        ("21_2", "PENDING", 0, None),
    ],
)
def test_states_and_ends(version: str, job: str, state: str, code: int, end: str | None) -> None:
    row = rows(version)[job]
    assert (part_status(row).state, row.exit_code) == (state, code)
    if end is not None:
        assert ending(row, "trainer")[0] == end


@pytest.mark.parametrize("version", ALL)
def test_requeued_held_and_waiting_for_a_moment(version: str) -> None:
    found = rows(version)
    assert (found["21_1"].reason, found["21_1"].restarts, found["21_1"].nodes) == ("BeginTime", 1, ())
    assert part_status(found["21_1"]).restarting
    assert part_status(found["20_0"]).why == "held; `scontrol release` lets it go on (JobHeldUser)"


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(("ticket", "job"), [("t1", "1"), ("t2", "2"), ("t5", "5")])
def test_what_was_cancelled_while_it_waited_is_found_without_its_task(version: str, ticket: str, job: str) -> None:
    one = part(0, job=f"{job}_0", ticket=ticket)
    (row,) = rows_by_part(manifest(one), parse_rows(ALL[version])).values()
    assert (row.job, row.task, part_status(row).state) == (one.job, 0, "CANCELLED")
    other = part(1, job="3_1", ticket="t3")  # nothing is left of it
    assert rows_by_part(manifest(other), parse_rows(ALL[version])) == {"trainer/1": None}
