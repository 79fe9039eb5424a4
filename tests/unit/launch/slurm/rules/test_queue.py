"""Recorded lines of squeue and their meaning; the words of Slurm 22.05 and of newer ones, as its manual has them."""

from __future__ import annotations

import pytest

from torchft_x.launch.slurm.rules import queue
from torchft_x.launch.slurm.rules.queue import Row, expand_nodes, parse_rows, parse_submitted
from torchft_x.launch.slurm.rules.state import app_state, part_status

# of 22.05.8: a running task, one that was requeued and waits, one that was killed by signal 9, a stranger's
RECORDED = """\
4_1|4|0|RUNNING|0|n1|2026-11-25T12:40:44|None|ddp-x-trainer|torchft_x:ddp-x:1f:/shared/run|
4_0|4|2|PENDING|0||2026-11-25T12:42:46|BeginTime|ddp-x-trainer|torchft_x:ddp-x:1f:/shared/run mine: a|b|
3_0|3|0|FAILED|9|n[1-2]|2026-11-25T12:40:44|NonZeroExitCode|ddp-x-lighthouse|torchft_x:ddp-x:aa:/shared/run|
77|77|0|RUNNING|256|n4|N/A|None|any|thing|(null)|
nonsense
"""


def test_rows_as_recorded() -> None:
    one, waits, killed, stranger = parse_rows(RECORDED)
    assert (one.job, one.array, one.task, one.app, one.ticket, one.run_dir) == (
        "4_1",
        "4",
        1,
        "ddp-x",
        "1f",
        "/shared/run",
    )
    assert (waits.restarts, waits.reason, waits.app, waits.nodes) == (2, "BeginTime", "ddp-x", ())
    assert waits.comment == "torchft_x:ddp-x:1f:/shared/run mine: a|b"
    assert (killed.exit_code, killed.nodes) == (128 + 9, ("n1", "n2"))
    assert (stranger.app, stranger.task, stranger.exit_code) == ("", None, 1)
    assert queue.comment("ddp-x", "1f", "/shared/run") == one.comment


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("0-199", list(range(200))),
        ("0-24:8", [0, 8, 16, 24]),  # of which squeue --array of 22.05.8 names three
        ("0-1,4,9,16%2", [0, 1, 4, 9, 16]),
        ("5", [5]),
    ],
)
def test_tasks_that_wait_in_one_line_are_rows_of_their_own(written: str, found: list[int]) -> None:
    line = f"4_[{written}]|4|0|PENDING|0||N/A|Dependency|ddp-x-trainer|torchft_x:ddp-x:1f:/shared/run|"
    rows = parse_rows(line)
    assert [row.task for row in rows] == found
    assert [row.job for row in rows] == [f"4_{task}" for task in found]
    (other,) = parse_rows(line.replace("torchft_x:ddp-x:1f:/shared/run", "(null)"))
    assert (other.job, other.task) == (f"4_[{written}]", None)  # somebody else's million tasks stay one line


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],m2", ["n1", "n2", "n3", "n7", "m2"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("(null)", []),
    ],
)
def test_names_of_nodes(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


def test_ids() -> None:
    assert parse_submitted("4711\n") == "4711"
    assert parse_submitted("4711;other\n") == "4711"  # a cluster of a federation
    assert parse_submitted("some plugin's greeting\n4711\n") == "4711"
    with pytest.raises(ValueError, match="no job id"):
        parse_submitted("sbatch: Submitted batch job")


def row(state: str, *, restarts: int = 0, reason: str = "None", code: int = 0) -> Row:
    return Row("4_0", "4", 0, "a-trainer", state, reason, (), "", restarts, "torchft_x:a:t:/r", code)


@pytest.mark.parametrize(
    ("of", "state", "restarting"),
    [
        (row("RUNNING"), "RUNNING", False),
        (row("COMPLETING"), "RUNNING", False),
        (row("CONFIGURING"), "PENDING", False),
        (row("PENDING", restarts=1, reason="BeginTime"), "PENDING", True),  # the gap of a requeue
        (row("REQUEUED"), "PENDING", True),
        (row("REQUEUE_HOLD"), "PENDING", True),
        (row("SPECIAL_EXIT"), "PENDING", True),
        (row("CANCELLED by 0"), "CANCELLED", False),
        (row("CANCELLED+"), "CANCELLED", False),
        (row("NODE_FAIL"), "FAILED", False),
        (row("TIMEOUT"), "FAILED", False),
        (row("OUT_OF_MEMORY"), "FAILED", False),
        (row("COMPLETED"), "SUCCEEDED", False),
        (row("EXPEDITING"), "UNKNOWN", False),  # of a version to come
        (row(""), "UNKNOWN", False),
        (None, "UNKNOWN", False),
    ],
)
def test_what_a_row_means(of: Row | None, state: str, restarting: bool) -> None:
    found = part_status(of)
    assert (found.state, found.restarting) == (state, restarting)


def test_why() -> None:
    assert part_status(row("FAILED", reason="NonZeroExitCode", code=137)).why == "failed, exit code 137"
    assert part_status(row("PENDING", reason="Resources")).why == "waits (Resources)"
    assert "scontrol release" in part_status(row("PENDING", restarts=1, reason="JobHeldAdmin")).why


@pytest.mark.parametrize(
    ("groups", "more", "state"),
    [
        (["RUNNING", "PENDING"], {}, "RUNNING"),
        (["RUNNING", "FAILED"], {}, "RUNNING"),  # whether that comes back is not Slurm's to say
        (["PENDING", "FAILED"], {}, "PENDING"),
        (["COMPLETED", "FAILED"], {"outcome": 0}, "SUCCEEDED"),
        (["COMPLETED", "RUNNING"], {"outcome": 0}, "RUNNING"),  # not before every group has ended
        (["COMPLETED", "PENDING"], {"outcome": 0}, "SUCCEEDED"),  # that is being cancelled
        (["COMPLETED", "COMPLETED"], {"outcome": 1}, "FAILED"),
        (["CANCELLED by 0", "CANCELLED by 0"], {}, "CANCELLED"),
        ([None, None], {"cancelled": True}, "CANCELLED"),
        ([None, None], {"outcome": 0}, "SUCCEEDED"),  # Slurm has forgotten it
        ([None, None], {}, "UNKNOWN"),
    ],
)
def test_what_they_mean_for_the_job(groups: list[str | None], more: dict[str, int], state: str) -> None:
    states = [part_status(None if word is None else row(word)).state for word in groups]
    assert app_state(states, min_replicas=1, **more) == state  # type: ignore[arg-type]


def test_without_a_verdict_the_groups_decide() -> None:
    def of(*words: str) -> str:
        return app_state([part_status(row(word)).state for word in words], min_replicas=2)

    assert of("COMPLETED", "COMPLETED") == "SUCCEEDED"
    assert of("COMPLETED", "FAILED") == "FAILED"
    assert of("COMPLETED", "RUNNING") == "RUNNING"
    assert of("CANCELLED", "FAILED") == "CANCELLED"
