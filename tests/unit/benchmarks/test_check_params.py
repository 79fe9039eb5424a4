"""benchmarks/evidence/check_params.py: what it accepts, and what it must not let pass."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.evidence import check_params


def write(
    folder: Path, group: str, step: int, body: bytes, *, rank: int = 0, attempt: int = 0, **fields: object
) -> Path:
    header = {"group": group, "step": step, "digest": hashlib.sha256(body).hexdigest(), **fields}
    path = folder / f"g{group}-r{rank}-a{attempt}-s{step:06d}.bin"
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)
    return path


def params(step: int, rank: int = 0) -> bytes:
    return bytes([step, rank, 10, 0]) * 100  # a newline among them: the header ends at the first one only


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Two groups of two ranks, six steps; group 1 is killed after step 2 and back, healed to 4, for step 5."""
    for rank in (0, 1):
        for step in range(1, 7):
            write(tmp_path, "0", step, params(step, rank), rank=rank, committed_in=step)
        for step in (1, 2):
            write(tmp_path, "1", step, params(step, rank), rank=rank, committed_in=step)
        for step in (5, 6):
            write(tmp_path, "1", step, params(step, rank), rank=rank, attempt=1, committed_in=step, healed=step == 5)
    return tmp_path


def run(*args: str | Path) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        return check_params.main([str(arg) for arg in args]), out.getvalue()


def fails(*args: str | Path, code: int = 1) -> str:
    """What it says of a run that it does not let pass."""
    found, output = run(*args)
    assert found == code, output
    return output


def test_a_good_run_passes_and_says_what_was_compared(good: Path) -> None:
    code, output = run(good)
    assert code == 0, output
    assert "ok: 20 dumps" in output
    assert "steps 1 to 6 without a gap, bit-equal at all 4 steps shared by groups" in output


def test_one_altered_bit_fails(good: Path) -> None:
    output = fails(good, "--flip-one-bit")
    assert "step 6, rank 1: the parameters differ: group 0 attempt 0 (quorum 6)" in output
    assert "damaged" not in output  # the comparison itself has found it, not the digest of the header


def alter_on_disk(folder: Path) -> None:
    path = folder / "g1-r0-a0-s000002.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x80")


def remove_step(folder: Path) -> None:
    for path in folder.glob("*-s000003.bin"):
        path.unlink()


def jump(folder: Path) -> None:
    (folder / "g1-r1-a0-s000001.bin").unlink()
    write(folder, "1", 4, params(4, 1), rank=1)


@pytest.mark.parametrize(
    ("spoil", "code", "sentence"),
    [
        (alter_on_disk, 1, "group 1 rank 0 attempt 0, step 2: the file is damaged"),
        (remove_step, 1, "no group has step 3: the steps jump from 2 to 4"),
        (jump, 1, "group 1 rank 1 attempt 0: its steps jump from 2 to 4 without a copied state"),
        (lambda folder: write(folder, "1", 2, params(99), attempt=1), 1, "step 2, rank 0: the parameters differ"),
        (lambda folder: (folder / "other.bin").write_bytes(b"no header\nbytes"), 2, "other.bin"),
        (lambda folder: (folder / "g0-r0-a0-s000009.bin").write_bytes(b"no header\n"), 2, "g0-r0-a0-s000009.bin"),
        (lambda folder: [path.unlink() for path in folder.glob("*.bin")], 2, "holds no dumps"),
    ],
    ids=["damaged", "a gap", "a jump", "committed again with other bits", "another file", "no header", "empty"],
)
def test_what_is_wrong_in_a_folder_is_named(
    good: Path, spoil: Callable[[Path], object], code: int, sentence: str
) -> None:
    spoil(good)
    assert sentence in fails(good, code=code)


def test_consumed_dumps_are_deleted_and_still_compared(good: Path) -> None:
    assert run(good, "--consume")[0] == 0
    assert not list(good.glob("*.bin"))
    assert run(good)[0] == 0
    write(good, "1", 4, params(98), healed=True)
    assert "step 4, rank 0: the parameters differ" in fails(good)


def test_a_dump_in_the_making_is_left_alone(good: Path) -> None:
    (good / "g0-r0-a0-s000007.bin.part").write_bytes(b"half")
    assert run(good)[0] == 0


@pytest.fixture
def undone(good: Path) -> Path:
    """Nobody is left who held steps 5 and 6; a new lineage goes on from step 4, with other batches."""
    for group in ("0", "1"):
        for step in (5, 6, 7):
            write(good, group, step, params(step + 100), attempt=5, committed_in=9)
            write(good, group, step, params(step + 100, 1), rank=1, attempt=5, committed_in=9)
    return good


def run_with(folder: Path, *quorums: int) -> Path:
    run_dir = folder / "run"
    (run_dir / "events").mkdir(parents=True)
    lines = [
        json.dumps(
            {"t": float(q), "mono": float(q), "pid": 1, "role": "lighthouse", "event": "new_lineage", "quorum": q}
        )
        for q in quorums
    ]
    (run_dir / "events" / "lighthouse-1.jsonl").write_text("".join(line + "\n" for line in lines))
    return run_dir


def test_steps_of_an_undone_lineage_are_not_compared_with_those_of_the_next(undone: Path) -> None:
    output = fails(undone)
    assert "step 5, rank 0: the parameters differ" in output
    code, output = run(undone, "--run", run_with(undone, 9))
    assert code == 0, output
    assert "at all 7 steps shared by groups, in 2 lineages" in output


def test_each_lineage_is_checked(undone: Path) -> None:
    run_dir = run_with(undone, 9)
    write(undone, "1", 7, params(8), attempt=5, committed_in=9)
    for path in undone.glob("g*-s000006.bin"):
        if "-a5-" in path.name:
            path.unlink()
    output = fails(undone, "--run", run_dir)
    assert "lineage 1, step 7, rank 0: the parameters differ" in output
    assert "lineage 1, no group has step 6: the steps jump from 5 to 7" in output


def test_a_lineage_goes_on_from_a_step_that_was_reached(good: Path) -> None:
    write(good, "0", 9, params(9), attempt=5, committed_in=9)
    assert "lineage 1, it begins with step 9, but no lineage before it has step 8" in fails(
        good, "--run", run_with(good, 9)
    )


def test_what_is_no_run_directory_is_said(good: Path, tmp_path: Path) -> None:
    assert "is no run directory" in fails(good, "--run", tmp_path / "nowhere", code=2)
