"""observe/drawing: the page, the summary and the JSON of a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.observe.written import BOOT, Log, killed
from torchft_x.observe.drawing import as_json, page, summary
from torchft_x.observe.drawing.shapes import amount, clock, moments, seconds, ticks
from torchft_x.observe.drawing.timeline import visible
from torchft_x.observe.run import Run, read_run
from torchft_x.observe.run.values import Samples, Span

EVIL = '"><script>alert(1)</script>\x1b[31m\n</title><img src=//x onerror=y>\u202e&amp;'


class Tags(HTMLParser):
    """All elements and attributes of a page, each once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


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


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(run: Run) -> None:
    text = page(run, BOOT + 100)
    assert not re.search(r"https?:|src=|href=|url\(|@import", text)
    tags = Tags(text)
    assert tags.tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "i", "b", "div", "span",
        "table", "tr", "th", "td", "svg", "path", "rect", "text",
    }  # fmt: skip
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text


def test_hostile_names_are_shown_harmless(run: Run, tmp_path: Path) -> None:
    evil = a_run(tmp_path, "0", EVIL, "2")
    evil = replace(evil, run_dir=f"/somewhere/{EVIL}", verdict=EVIL, code=1, errors=(EVIL,))
    text = page(evil, BOOT + 100, run)
    assert Tags(text).tags - {"h2"} == Tags(page(run, BOOT + 100, run)).tags - {"h2"}
    assert Tags(text).attributes == Tags(page(run, BOOT + 100, run)).attributes
    assert "&lt;script&gt;" in text  # and still to be read
    for shown in (text, summary(evil, BOOT + 100)):
        assert not {c for c in shown if not c.isprintable()} - {"\n"}


def test_each_loss_has_its_row(run: Run) -> None:
    text = page(run, BOOT + 100)
    assert "chaos: kill -&gt; died (worker 0 killed by SIGKILL)" in text
    assert "detected after 30 ms; released after 51 ms; regrouped after 70 ms; committed after 110 ms" in text
    assert "0/1/20/0" in text


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
    assert f"<p>Samples: {row}.</p>" in page(dealt, BOOT)


def test_two_runs_side_by_side(run: Run) -> None:
    two = replace(run, run_dir="two", steps=242)
    assert re.search(r"steps committed +121 +242 +0.50 x", summary(run, BOOT, two))
    text = page(run, BOOT, two)
    assert '<td class="n">121</td><td class="n">242</td><td class="n">0.50 x</td>' in text
    assert text.count('class="other"') == 2  # the other one's loss, by step and by time


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


def test_round_numbers() -> None:
    assert (clock(9.94), clock(104.5), clock(3725.04)) == ("0:09.9", "1:44.5", "1:02:05.0")
    assert moments(200) == [0, 30, 60, 90, 120, 150, 180]
    assert moments(40 * 86400)[1] == 5 * 86400
    assert (amount(999), amount(1_500_000), amount(2e15)) == ("999 B", "1.5 MB", "2e+03 TB")
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(3, 3) == [3]
