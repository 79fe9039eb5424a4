"""What is read from the trainers' records: stalls, lost batches, the return of a group, goodput."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.goodput import GROUPS, account, schedule
from benchmarks.record import AttemptRecord, Commit, Records, goes_on, longest_gap, thrown_away, together


def record(*lines: str) -> AttemptRecord:
    out = AttemptRecord()
    for line in lines:
        out.take(line)
    return out


def test_records_are_read_as_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "0-77-1.rec"
    path.write_bytes(b"S 1.0 77 0 \nM 2.0 \nB 3.0 \nC 4.0 1 2 1 \nB 5")  # the last line is still being written
    records = Records(tmp_path)
    (first,) = records.update()
    assert (first.pid, first.group, first.ready, first.drawn) == (77, "0", 2.0, [3.0])
    assert first.commits == [Commit(4.0, 1, 2, True)]
    with path.open("ab") as f:
        f.write(b".5 \n")
    assert records.update()[0].drawn == [3.0, 5.5]


def test_a_restarted_group_has_two_attempts(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_text("S 1.0 7 0 \n")
    (tmp_path / "b.rec").write_text("S 9.0 8 0 \n")
    newest = Records(tmp_path).newest("0")
    assert newest.pid == 8


def test_training_on_means_without_the_victim() -> None:
    survivor = record("C 1.0 1 2 1", "C 2.0 2 2 1", "C 3.0 3 1 1")
    assert goes_on(survivor, after=1.5, fewer_than=2) == 3.0  # the commit at 2.0 was of the step in flight
    assert goes_on(survivor, after=3.5, fewer_than=2) is None


def test_a_batch_without_a_commit_before_the_next_is_lost() -> None:
    survivor = record("B 1", "C 2 1 2 1", "B 3", "B 5", "C 6 2 1 1", "B 7", "B 8", "C 9 3 1 1", "B 10")
    assert thrown_away(survivor, 0.0, 20.0) == 2  # those of 3 and 7; that of 10 may still be committed
    assert thrown_away(survivor, 4.0, 6.5) == 1  # the one of 3 was under way at 4
    assert thrown_away(survivor, 8.5, 20.0) == 0


@pytest.mark.parametrize(
    ("begin", "end", "gap"),
    [(0.0, 2.5, 1.0), (0.0, 4.0, 5.0), (1.5, 2.5, 1.0), (2.5, 9.0, 5.0), (3.5, 6.0, 5.0), (11.0, 13.0, 4.0)],
)
def test_the_longest_gap_counts_the_neighbours(begin: float, end: float, gap: float) -> None:
    times = [1.0, 2.0, 3.0, 8.0, 9.0]
    assert longest_gap(times, begin, end) == pytest.approx(gap)


def test_together_is_the_first_step_that_all_committed_with_all() -> None:
    a = record("C 5.0 10 1 1", "C 6.0 11 2 1", "C 7.0 12 2 1")
    b = record("C 6.1 11 2 0", "C 7.2 12 2 1")  # it healed in step 11
    assert together([a, b], after=1.0) == 7.2
    assert together([a, record()], after=1.0) is None


def test_the_kills_of_a_pair_are_alike() -> None:
    assert schedule(5.0, 60.0, 3) == schedule(5.0, 60.0, 3)
    assert schedule(5.0, 60.0, 3) != schedule(5.0, 60.0, 4)
    gaps = sum(len(schedule(5.0, 60.0, seed)) for seed in range(200)) / 200
    assert 10.5 < gaps < 13.5  # twelve in a minute


def steps(group: str, *spans: tuple[float, float]) -> AttemptRecord:
    """Ten commits a second in these spans."""
    out = AttemptRecord(group=group, pid=1)
    for begin, end in spans:
        n = round(10 * (end - begin))
        out.commits += [Commit(begin + (i + 0.5) / 10, i, GROUPS, True) for i in range(n)]
    return out


def test_a_dead_group_costs_raw_goodput_only() -> None:
    attempts = [steps(str(g), (0.0, 30.0)) for g in range(3)] + [steps("3", (0.0, 20.0), (25.0, 30.0))]
    got = account(attempts, [(20.0, "3")], quiet=0.0, begin=10.0, end=30.0)
    assert got.raw == pytest.approx(750 / 800)
    assert got.normalised == pytest.approx(1.0, abs=0.002)
    assert got.timeline["full"] == pytest.approx(40.0)
    assert got.timeline["rate"][12] == 30  # three groups
    assert got.timeline["kills"] == [10.0]


def test_a_stall_of_the_survivors_costs_both() -> None:
    attempts = [steps(str(g), (0.0, 20.0), (25.0, 30.0)) for g in range(4)]
    got = account(attempts, [(20.0, "3")], quiet=0.0, begin=10.0, end=30.0)
    assert got.raw == pytest.approx(0.75)
    assert got.normalised == pytest.approx(600 / 750, abs=0.002)


def test_a_group_killed_again_before_it_is_back_is_dead_once() -> None:
    attempts = [steps(str(g), (0.0, 30.0)) for g in range(3)] + [steps("3", (0.0, 20.0))]
    got = account(attempts, [(20.0, "3"), (22.0, "3")], quiet=0.0, begin=10.0, end=30.0)
    assert got.normalised == pytest.approx(1.0, abs=0.002)
