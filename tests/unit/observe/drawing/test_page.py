"""observe/drawing: the page, the summary and the JSON of a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.observe.written import BOOT, Log, killed
from torchft_x.observe.console import harmless
from torchft_x.observe.drawing import as_json, page, summary
from torchft_x.observe.drawing.page import visible
from torchft_x.observe.run import Run, read_run
from torchft_x.observe.run.values import Samples, Span
from torchft_x.units import amount, clock, seconds

EVIL = '"><script>alert(1)</script>\x1b[31m\n</title><img src=//x onerror=y>\u202e&amp;'


def data(text: str) -> dict[str, Any]:
    """Return what a page's script draws."""
    (found,) = re.findall('<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(found))


def section(text: str, title: str) -> dict[str, Any]:
    return next(s for s in data(text)["sections"] if s["title"].startswith(title))


def a_run(folder: Path, *names: str) -> Run:
    job = killed(folder, *names)
    Log(folder, "chaos", 99).tell(9.99, "fault", kind="kill", group=job.names[1], rank=0, victim=21, number=1)
    for step, loss in ((50, 3.5), (100, 2.5)):
        job.trainers[job.names[0]].tell(7.0 + step / 20, "metrics", step=step, loss=loss)
    run = read_run(folder)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return a_run(tmp_path_factory.mktemp("run"))


def test_the_page_needs_nothing_from_elsewhere_and_runs_its_own_script_only(run: Run) -> None:
    text = page(run, BOOT + 100)
    assert re.findall(r"https?://(?!www\.w3\.org)[^\s'\"]+", text) == []
    (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="(.*?)">', text)
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert "prefers-color-scheme: dark" in text


def test_hostile_names_stay_data(run: Run, tmp_path: Path) -> None:
    evil = a_run(tmp_path, "0", EVIL, "2")
    evil = replace(evil, run_dir=f"/somewhere/{EVIL}", verdict=EVIL, code=1, errors=(EVIL,))
    text = page(evil, BOOT + 100, run)
    assert re.findall("<[^>]*>", text) == re.findall("<[^>]*>", page(run, BOOT + 100, run))
    assert data(text)["sections"][-1] == {"title": "What failed besides", "sentences": [harmless(EVIL)]}
    for shown in (text, summary(evil, BOOT + 100)):
        assert not {c for c in shown if not c.isprintable()} - {"\n"}


def test_each_loss_has_its_row(run: Run) -> None:
    (row,) = section(page(run, BOOT + 100), "Losses: 1 died")["losses"]
    assert (row["at"], row["group"], row["what"], row["steps"]) == (
        "0:10.0", "1", "chaos: kill -> died (worker 0 killed by SIGKILL)", "0/1/20/0",
    )  # fmt: skip
    phases = {"fault": 0.0, "detected": 0.03, "released": 0.051, "regrouped": 0.07, "committed": 0.11}
    back = {"restarted": 1.51, "healed": 2.06, "back": 2.11, "whole": 2.11}
    assert row["phases"] == pytest.approx(phases | back, abs=1e-4)


def test_the_timeline_has_each_activity_and_loss(run: Run) -> None:
    drawn = section(page(run, BOOT + 100), "What happened when")["timeline"]
    assert [row["name"] for row in drawn["rows"]] == ["lighthouse", "0", "1", "2"]
    kinds = [kind for _, _, kind in drawn["rows"][2]["spans"]]
    assert kinds == ["starting", "joining", "training", "starting", "joining", "training"]
    assert [tone for _, tone, _ in drawn["rows"][2]["marks"]] == ["fault"]
    stairs, rate = drawn["bands"]
    assert [number for _, number in stairs["points"]] == [3, 2, 2]
    assert len(rate["points"]) == len(run.rate)


def test_the_summary_says_the_same(run: Run) -> None:
    lines = summary(run, BOOT + 100).splitlines()
    assert lines[0].endswith("The job ended well.")
    assert any(re.fullmatch(r"  steps committed +121", line) for line in lines)
    assert any(
        re.search(r"^  0:10.0 +1 +chaos: kill -> died .* 30 ms +110 ms +2.11 s +100 ms +0/1/20$", x) for x in lines
    )


def test_how_a_run_stands(run: Run) -> None:
    run = replace(run, code=None)
    assert "goes on: its newest event is 5 s old" in summary(run, run.ended + 5)
    assert "The end of the job was not written" in summary(run, run.ended + 500)
    assert "failed (exit code 1): group 1 gave up." in summary(replace(run, code=1, verdict="group 1 gave up."), 0.0)
    stopped = summary(replace(run, code=143, verdict="it was cancelled."), 0.0)
    assert "The job was stopped (exit code 143): it was cancelled." in stopped
    assert "x.jsonl could not be written to the end" in summary(replace(run, incomplete=("x.jsonl",)), 0.0)
    assert "x.jsonl and 1 more could not" in summary(replace(run, incomplete=("x.jsonl", "y.jsonl")), 0.0)
    assert "The logs end at step 121 of 500 (disk full?)" in summary(replace(run, steps=500, unlogged=379), 0.0)


def test_samples_have_a_row(run: Run) -> None:
    assert "samples" not in summary(run, BOOT)
    dealt = replace(run, samples=Samples(committed=12345, repeated=0, debt=8))
    row = "12,345 committed, 0 repeated, 8 in debt"
    assert re.search(rf"^  samples +{row}$", summary(dealt, BOOT), re.MULTILINE)
    assert re.search(rf"^  samples +{row} +-$", summary(dealt, BOOT, run), re.MULTILINE)
    assert f"Samples: {row}." in data(page(dealt, BOOT))["sentences"]


def test_two_runs_side_by_side(run: Run) -> None:
    two = replace(run, run_dir="two", steps=242)
    assert re.search(r"steps committed +121 +242 +0.50 x", summary(run, BOOT, two))
    text = page(run, BOOT, two)
    assert ["steps committed", "121", "242", "0.50 x"] in section(text, "Against two")["rows"]
    assert [len(chart["lines"]) for chart in section(text, "Steps and groups")["charts"][:2]] == [2, 2]


def test_json_has_everything(run: Run) -> None:
    made = json.loads(json.dumps(as_json(run, BOOT)))
    assert made["figures"]["steps committed"] == 121
    assert made["losses"][0]["phases"]["back"] == pytest.approx(2.11)
    assert [g["name"] for g in made["groups"]] == ["0", "1", "2"]


def test_many_failures_are_still_a_small_file(run: Run) -> None:
    spans = tuple(
        Span(begin=BOOT + k / 500, end=BOOT + k / 500 + 0.001, what=w) for k in range(1000) for w in ("joining", "out")
    )
    groups = tuple(replace(run.groups[1], name=str(k), spans=spans) for k in range(200))
    many = replace(
        run,
        losses=tuple(replace(run.losses[0], stood=float(k)) for k in range(5000)),
        groups=groups,
        errors=("x" * 300,) * 50,
    )
    text = page(many, BOOT)
    assert len(text) < 2e6
    assert "4600 more are in --json" in text
    assert "100 more groups not drawn" in text


def test_what_lies_within_a_pixel_is_drawn_once() -> None:
    spans = [Span(begin=k / 10, end=k / 10 + 0.09, what="training") for k in range(100)]
    assert visible(spans, 1.0) == [Span(begin=0.0, end=9.9 + 0.09, what="training")]
    assert visible(spans, 0.001) == spans


def test_a_run_without_a_step_has_a_page(tmp_path: Path) -> None:
    Log(tmp_path, "supervisor", 1, group="0").tell(1.0, "start", attempt=0)
    run = read_run(tmp_path)
    assert run is not None
    assert "Too few steps" in page(run, BOOT)
    assert "steps committed" not in summary(run, BOOT)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (0.0, "0 ms"), (0.0004, "0.4 ms"), (0.045, "45 ms"), (1.634, "1.63 s"), (59.96, "60 s"), (123.4, "2 min 3 s"), (7300, "2 h 1 min")],
)  # fmt: skip
def test_seconds_for_people(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_times_and_bytes_for_people() -> None:
    assert (clock(9.94), clock(104.5), clock(3725.04)) == ("0:09.9", "1:44.5", "1:02:05.0")
    assert (amount(999), amount(1_500_000), amount(2e15)) == ("999 B", "1.5 MB", "2e+03 TB")
