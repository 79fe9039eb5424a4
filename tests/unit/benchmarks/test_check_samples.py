"""benchmarks/evidence/check_samples.py finds what is not exact in the lines of a training, and only that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import check_samples

Lines = list[dict[str, Any]]


def tries(who: str, step: int, quorum: int, *indices: int, epoch: int = 0, rank: int = 0, ranks: int = 1) -> Lines:
    samples = [[epoch, index] for index in indices]
    named = {"who": who, "rank": rank, "ranks": ranks, "step": step, "quorum": quorum}
    return [{"kind": "try", **named, "samples": samples}]


def commit(step: int, quorum: int, before: int, *contributors: str) -> Lines:
    return [{"kind": "commit", "step": step, "committed_in": quorum, "before": before, "contributors": [*contributors]}]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*lines: Lines, length: int = 4, epochs: int = 1, counts: bytes = b"", more: str = "") -> tuple[int, str]:
        text = "".join(json.dumps(line) + "\n" for part in lines for line in part)
        (tmp_path / "group0.jsonl").write_text(text + '{"kind": "tr')
        if counts:
            (tmp_path / "group0.counts").write_bytes(counts)
        words = [str(tmp_path), "--length", str(length), "--epochs", str(epochs), *more.split()]
        monkeypatch.setattr("sys.argv", ["check_samples", *words])
        return check_samples.main(), capsys.readouterr().out

    return run


STEP0 = [*tries("a", 0, 1, 0), *tries("b", 0, 1, 1), *commit(0, 1, 0, "a", "b")]
STEP1 = [*tries("a", 1, 1, 2), *tries("b", 1, 1, 3), *commit(1, 1, 1, "a", "b")]


def test_an_exact_training_passes(check: Any) -> None:
    code, text = check(STEP0, STEP1, commit(1, 1, 1, "a", "b"), counts=bytes([1, 1, 1, 1]))
    assert code == 0
    assert "exact: 1 epochs of 4 samples" in text
    assert "2 steps, 0 rolled back; samples per step: {2: 2}" in text


def test_a_missing_sample_is_found(check: Any) -> None:
    code, text = check(STEP0, tries("a", 1, 1, 2), tries("b", 1, 1), commit(1, 1, 1, "a", "b"))
    assert code == 1
    assert "epoch 0 is not exact: 1 missing, 0 repeated" in text


def test_a_repeated_sample_is_found_in_an_incomplete_epoch_too(check: Any) -> None:
    more = [*tries("a", 2, 1, 0, epoch=1), *tries("b", 2, 1, 0, epoch=1), *commit(2, 1, 1, "a", "b")]
    code, text = check(STEP0, STEP1, more)
    assert code == 1
    assert "epoch 1 is not exact: 3 missing, 1 repeated" in text
    assert "epoch 0 is not exact" not in text


def test_a_group_that_died_before_the_commit_has_trained_nothing(check: Any) -> None:
    alone = [*tries("a", 1, 1, 2), *tries("b", 1, 1, 3), *commit(1, 2, 1, "a")]  # committed again, without b
    code, text = check(STEP0, alone)
    assert code == 1
    assert "1 missing, 0 repeated" in text
    code, _ = check(STEP0, alone, tries("a", 2, 2, 3), commit(2, 2, 2, "a"))
    assert code == 0


def test_the_newest_try_at_or_before_the_committing_quorum_counts(check: Any) -> None:
    dealt_again = [*tries("a", 1, 1, 2), *tries("a", 1, 2, 2, 3), *tries("a", 1, 3, 0), *commit(1, 2, 1, "a")]
    assert check(STEP0, dealt_again)[0] == 0


def test_commits_that_were_rolled_back_do_not_count(check: Any) -> None:
    again = [*tries("c", 1, 5, 3, 2), *commit(1, 5, 1, "c")]  # begins at the checkpoint of step 1
    code, text = check(STEP0, STEP1, tries("a", 2, 1, 0), commit(2, 1, 1, "a"), again)
    assert code == 0
    assert "2 steps, 2 rolled back" in text


def test_all_ranks_of_a_contributor_have_trained(check: Any) -> None:
    ranks = [*tries("c", 1, 1, 2, ranks=2), *tries("c", 1, 1, 3, rank=1, ranks=2), *commit(1, 1, 1, "c")]
    assert check(STEP0, ranks)[0] == 0
    code, text = check(STEP0, ranks[:1], ranks[2:])
    assert code == 1
    assert "c rank 1 contributed, but tried nothing" in text


def test_parameters_that_say_otherwise_are_found(check: Any) -> None:
    code, text = check(STEP0, STEP1, counts=bytes([1, 1, 1, 2]))
    assert code == 1
    assert "the parameters in group0.counts say otherwise" in text


def test_a_gap_and_a_contradiction_are_found(check: Any) -> None:
    code, text = check(STEP1)
    assert code == 1
    assert "no line says that step 0 was committed in quorum 1" in text
    code, text = check(STEP0, STEP1, commit(1, 1, 1, "a"))
    assert code == 1
    assert "one says" in text


def test_a_contributor_without_a_try_is_found(check: Any) -> None:
    code, text = check(STEP0, tries("a", 1, 1, 2, 3), commit(1, 1, 1, "a", "b"))
    assert code == 1
    assert "b rank 0 contributed, but tried nothing" in text


def test_the_tail_drop_leaves_out_as_many_as_named(check: Any) -> None:
    assert check(STEP0, STEP1, length=5, more="--left-out 1")[0] == 0
    assert check(STEP0, STEP1, length=6, more="--left-out 1")[0] == 1


def test_no_lines_are_no_success(check: Any) -> None:
    assert check([], epochs=0)[0] == 1
