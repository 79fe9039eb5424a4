"""observe/drawing: a run's page as a real browser draws it from a file."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.journeys.chromium import GET, program
from tests.unit.observe.drawing.test_page import EVIL, a_run
from tests.unit.observe.written import BOOT
from tests.util import scaled
from torchft_x.observe.console import harmless
from torchft_x.observe.drawing import page

pytestmark = pytest.mark.skipif(program() is None, reason=GET)


class Drawn(HTMLParser):
    """The elements and texts of a document. `shapes`: classes of the SVG's shapes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.shapes: list[str] = []
        self.texts: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("rect", "path"):
            self.shapes.append(dict(attrs).get("class") or "")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


def drawn(text: str, folder: Path) -> Drawn:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    command = [program() or "", "--headless", "--disable-gpu", f"--user-data-dir={folder / 'browser'}", "--dump-dom"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=scaled(60), check=True)
    return Drawn(done.stdout)


def test_all_that_a_run_has_is_drawn(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    found = drawn(page(run, BOOT + 100, replace(run, run_dir="two", steps=242)), tmp_path)
    titles = {text.partition(":")[0] for text in found.texts}
    assert {"Against two", "What happened when", "Losses", "Goodput", "Steps and groups"} <= titles
    for words in (
        "121", "0.50 x", "chaos: kill -> died (worker 0 killed by SIGKILL)", "30 ms", "110 ms", "2.11 s", "0/1/20/0", "loss by step; thin: the other run",
        "detected after 30 ms; released after 51 ms; regrouped after 70 ms; committed after 110 ms; restarted after 1.51 s; healed "
        "after 2.06 s; back after 2.11 s; whole after 2.11 s", "group 1: training, 7.8 s from 0:02.1 on", "0:10.0: kill by chaos. worker 0 "
        "killed by SIGKILL",
    ):  # fmt: skip
        assert words in found.texts, words
    for shape in (
        "in training",
        "in joining",
        "in starting",
        "in fault",
        "in stairs",
        "in rate",
        "dashed",
        "in back",
        "curve",
        "in bar",
    ):
        assert shape in found.shapes, shape
    assert found.shapes.count("other") == 2  # the other run's loss, by step and by time


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", "0", "1", "2")
    evil = replace(a_run(tmp_path / "b", "0", EVIL, "2"), run_dir=f"/somewhere/{EVIL}", verdict=EVIL, code=1)
    plain = drawn(page(replace(run, verdict="plain", code=1), BOOT + 100), tmp_path)
    found = drawn(page(evil, BOOT + 100), tmp_path)
    assert sorted(found.tags) == sorted(plain.tags)
    assert found.texts.count(harmless(EVIL)) >= 2  # the group's row, and its loss
