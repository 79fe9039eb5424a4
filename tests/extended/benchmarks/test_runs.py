"""Every benchmark runs once in its smallest form. No figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cli, results
from benchmarks.libraries import Library, find_peer
from tests.extended.rpc.test_peer import HOW

BESIDE_THE_PEER = ["fanout", "heal", "kill"]
"""Of each way to run the peer one; the others take minutes of waiting for it."""


def run(out: Path, *argv: str) -> list[results.Row]:
    assert cli.main([*argv, "--quick", "--out", str(out)]) == 0
    return results.all_rows(results.read(out))


def check_ours(rows: list[results.Row]) -> None:
    assert rows
    for row in rows:
        assert row["ours"] or "has no" in row["why"], f"{row['key']} has no figure: {row['why']} {row['note']}"
        assert row["verdict"]


def test_what_needs_no_job_runs_and_is_added_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "bench.json", "lighthouse", "--only", "ours")
    rows = run(tmp_path / "bench.json", "fanout", "--only", "ours", "--groups", "2", "--add")
    assert {"lighthouse.ready", "fanout.2"} <= {row["key"] for row in rows}
    check_ours(rows)
    assert all(row["peer"] is None for row in rows)
    text = capsys.readouterr().out
    assert "no peer: the peer was left out (--only ours)" in text
    assert all(row["what"] in text for row in rows)
    assert not list(tmp_path.glob("bench-*"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(cli.BENCHMARKS) - {"lighthouse", *BESIDE_THE_PEER}))
def test_what_starts_jobs_runs(name: str, tmp_path: Path) -> None:
    check_ours(run(tmp_path / "bench.json", name, "--only", "ours"))


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BESIDE_THE_PEER)
def test_the_peer_is_measured_too(name: str, tmp_path: Path) -> None:
    if not isinstance(find_peer(), Library):
        pytest.skip(HOW)
    rows = run(tmp_path / "bench.json", name)
    check_ours(rows)
    has_peer = [row for row in rows if row["ours"] and "no_vote" not in row["key"] and "held" not in row["key"]]
    assert all(row["peer"] for row in has_peer)
