"""The table shows what the file holds; a missing peer, a failed benchmark and a smoke run are said; pictures are SVG."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import cli, libraries, results
from benchmarks.bench import Bench, Measured, interleave
from benchmarks.processes import GaveUp
from benchmarks.stats import Goal

ROOT = Path(__file__).parents[3]
OURS = libraries.Library("ours", "torchft_x", sys.executable, {})
PEER = libraries.Library("peer", "torchft", "python", {})


def bench(pairs: int = 3, peer: libraries.Library | str = PEER, said: list[str] | None = None) -> Bench:
    return Bench(OURS, peer, pairs, pairs, say=(said if said is not None else []).append)


def measured() -> list[Measured]:
    a = Measured("kill.2", "kill", "s", [0.08] * 30, [5.0] * 30, goal=Goal(0.1), note="with a remark")
    b = Measured("outage", "outage", "s", [0.1] * 6, [None] * 6, goal=Goal(0.05))
    c = Measured("heal", "heal", "GB/s", [4.0] * 6, [], [5.0] * 6, "raw TCP", Goal(0.9, of="ours/limit", at_most=False))
    c.why_no_peer, c.higher_is_better = "torchft-nightly is not here", True
    d = Measured("no", "not done", "ms", why_not="it has no such option", goal=Goal(1.0))
    d.timeline = {"mtbf": 5.0, "ours": {"kills": [1.5], "rate": [40, 20, 40], "full": 40.0}}
    return [a, b, c, d]


def data() -> dict:
    rows = [results.row_of(m) for m in measured()]
    ran = {"at": "noon", "commit": "0123abc", "load_before": 0.5, "load_after": 1.5}
    one = {"rows": rows, "quick": False, "timelines": [m.timeline for m in measured() if m.timeline], **ran}
    return {
        "machine": {"cpu": "a <cpu> & co", "cores": 2, "memory_gb": 1},
        "versions": {},
        "began": "now",
        "load_before": 1.0,
        "benchmarks": {"things": one, "other": {"rows": [], "quick": True, "failed": "no job came up", **ran}},
    }


def test_the_file_holds_what_the_table_shows(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bench.json"
    results.write(path, data())
    assert "Infinity" not in path.read_text()
    again = results.read(path)
    assert results.table(results.all_rows(again)) == results.table(results.all_rows(data()))
    lines = results.table(results.all_rows(again)).splitlines()
    assert re.search(r"kill +<= 0.1 s +0.0800 s \[0.0800, 0.0800\] n=30 +5.00 s .* 0.0160 x .* met$", lines[2])
    assert re.search(r"outage .* never \[never, never\] n=6 .* not met$", lines[3])
    assert re.search(r"heal +>= 0.9 x limit +4.00 GB/s .* none .* 5.00 GB/s .* not met$", lines[4])
    assert re.search(r"not done .* it has no such option .* not measured$", lines[5])


def test_what_has_to_be_said_is_said() -> None:
    said = results.notes(data())
    assert "kill: with a remark" in said
    assert "things: no peer: torchft-nightly is not here" in said
    assert "heal: the limit is raw TCP; ours/limit 0.800 x [0.800, 0.800] n=6" in said
    assert "other: could not be measured: no job came up" in said
    assert "other: a smoke run (--quick); its figures say nothing" in said


def test_the_pictures_are_well_formed(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    drawn = cli.draw.draw_all(data(), out)
    assert [p.name for p in drawn] == ["bench.svg", "bench-goodput.svg"]
    texts = [[x.text for x in ET.parse(p).iter("{http://www.w3.org/2000/svg}text")] for p in drawn]
    assert {"kill", "outage", "heal"} <= set(texts[0])
    assert "not done" not in texts[0]  # nothing to draw
    assert "torchft_x, a kill each 5 s on average, 1 kills" in texts[1]


def test_pairs_are_run_a_b_b_a() -> None:
    order: list[str] = []
    pairs = interleave(bench(4), lambda library: order.append(library.key) or len(order))
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours"]
    assert pairs.got == {"ours": [1, 4, 5, 8], "peer": [2, 3, 6, 7]}


def test_a_failed_try_is_told_and_repeated() -> None:
    said: list[str] = []
    left = iter([GaveUp("no port")])

    def once(library: libraries.Library) -> int:
        if library.key == "peer":
            for failure in left:
                raise failure
        return 1

    pairs = interleave(bench(2, said=said), once)
    assert pairs.got == {"ours": [1, 1], "peer": [1, 1]}
    assert pairs.failures == ["peer: no port"]
    assert "no port" in said[0]


def test_a_library_that_always_fails_leaves_the_other_alone() -> None:
    def once(library: libraries.Library) -> float:
        if library.key == "peer":
            raise GaveUp("it never starts")
        return 1.0

    b = bench(3)
    pairs = interleave(b, once)
    row = pairs.fill(Measured("k", "what", "s"), lambda x: x, b)
    assert row.ours == [1.0] * 3
    assert row.why_no_peer == "each try failed, see the notes"
    assert len(pairs.failures) == 3  # it was not asked for again in the later pairs


def test_mistakes_of_the_command_line_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv, words in (
        (["kil"], "there is no benchmark 'kil'"),
        (["--pairs", "0"], "--pairs must be at least 1"),
        (["--show", "--out", str(tmp_path / "none.json")], "run a benchmark first"),
        (["--markdown"], "--markdown goes with --show"),
        (["--main", "kill"], "--main chooses the benchmarks itself"),
        (["goodput", "--mtbf", "7"], "invalid choice: 7.0"),
    ):
        with pytest.raises(SystemExit) as e:
            cli.main(argv)
        assert e.value.code == 2
        assert words in capsys.readouterr().err


def test_the_file_can_be_shown_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    results.write(out, data() | {"load_after": 2.0})
    assert cli.main(["--show", "--out", str(out)]) == 0
    assert results.table(results.all_rows(data())) in capsys.readouterr().out
    assert cli.main(["--show", "--markdown", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row in results.all_rows(data()):
        assert any(line.startswith(f"| {row['what']} | ") and row["verdict"].strip("-") in line for line in lines), row
    for name, entry in data()["benchmarks"].items():
        assert any(line.startswith(f"| {name} | {entry['at']} | {entry['commit']} |") for line in lines), name


def test_the_documentation_names_every_benchmark() -> None:
    text = (ROOT / "docs/dev/benchmarks.md").read_text(encoding="utf-8")
    for name in cli.BENCHMARKS:
        assert f"| `{name}` |" in text, f"docs/dev/benchmarks.md says nothing about {name}"
