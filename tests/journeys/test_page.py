"""A real job, its page in a real browser, and orders from the page and from another shell.

Leaves `desktop.png`, `dark.png` and `phone.png` in its temporary folder; those in docs/pictures are copies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.chromium import GET, Tab, chromium, program
from tests.journeys.jobs import SMALL, TRIAL, WARM, Job, running, torchx_ddp
from tests.started import ROOT, gone
from tests.util import scaled

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(program() is None, reason=GET),
]
LARGEST = 150_000
"""Bytes of a picture."""


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "torchft_x", *words]
    return subprocess.run(line, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=scaled(30))


def shown(job: Job) -> dict[str, Any]:
    url = (job.run_dir / "page").read_text().strip()
    with urllib.request.urlopen(f"{url}status.json", timeout=scaled(10)) as answer:
        return dict(json.load(answer))


def told(job: Job) -> dict[str, Any] | None:
    """The death, once all its phases are known."""
    phases = ("regrouped", "committed", "restarted", "rejoined", "back", "whole", "stood")
    deaths = [x for x in shown(job)["losses"] if x["exit"] and all(x[phase] is not None for phase in phases)]
    return deaths[0] if deaths else None


def measured(job: Job, what: str) -> float:
    """How many durations of this kind /metrics has."""
    url = (job.run_dir / "page").read_text().strip()
    with urllib.request.urlopen(f"{url}metrics", timeout=scaled(10)) as answer:
        text = answer.read().decode()
    (line,) = (x for x in text.splitlines() if x.startswith(f"torchft_x_{what}_seconds_count "))
    return float(line.split()[1])


def does(job: Job) -> dict[str, str]:
    return {g["group"]: g["does"] for g in shown(job)["groups"]}


def word(group: str) -> str:
    """What the page says that the group does; '': nothing."""
    card = f"[...document.querySelectorAll('#groups .group')].find((c) => c.dataset.group === '{group}')"
    return f"({card})?.querySelector('.does').textContent"


def press(tab: Tab, group: str, kind: str) -> None:
    """A button of a group, and what is asked then."""
    card = f"[...document.querySelectorAll('#groups .group')].find((c) => c.dataset.group === '{group}')"
    tab.js(f"[...({card}).querySelectorAll('button')].find((b) => b.textContent === '{kind}').click()")
    assert tab.js("document.getElementById('ask').open")
    tab.js("document.getElementById('ask-go').click()")


def test_a_job_is_watched_and_steered(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    job_command = torchx_ddp(run_dir, "--steps", "100000", "--pace", "0.05", *SMALL, groups=3, script=TRIAL)
    with running(job_command, tmp_path / "log", run_dir, **WARM) as job, chromium(tmp_path / "browser") as tab:
        job.wait_until_training(3)
        url = command("status", str(run_dir), "--url").stdout.strip()
        assert "#token=" in url
        tab.open(url, 1280, 900)
        tab.wait_for("document.getElementById('state').textContent === 'training'")
        assert tab.js("location.hash") == ""  # a picture of the address bar shows no token
        name = tab.js("document.getElementById('job').textContent")
        assert (name[:4], shown(job)["job"]) == ("ddp-", name)
        # in the column of a row's time it was one word a line
        tab.wait_for("document.querySelector('#losses .empty')?.getBoundingClientRect().height < 60")

        os.kill(job.worker("1"), signal.SIGKILL)
        job.wait_for(lambda: any(x["exit"] and x["rejoined"] for x in shown(job)["losses"]), 60, "its return")
        (death,) = (x for x in shown(job)["losses"] if x["exit"])  # on a busy machine others may be late, too
        assert (death["group"], death["exit"][:26]) == ("1", "worker 0 killed by SIGKILL")
        job.wait_for(lambda: told(job), 60, "what it has cost, from those who know")
        cost = told(job)
        assert cost is not None
        assert 0.0 <= cost["regrouped"] <= cost["committed"] <= cost["back"], cost
        assert 0.0 <= cost["restarted"] <= cost["rejoined"] <= cost["back"], cost
        assert cost["stood"] > 0.0
        assert cost["contributed"] == 3
        assert cost["whole"] >= cost["back"], cost
        job.wait_for(lambda: measured(job, "heal") >= 1, 30, "the heal's duration")
        assert measured(job, "step") > 20
        assert measured(job, "reduce") > 20
        press(tab, "2", "drain")
        tab.wait_for(f"{word('2')} === 'drained'", 60)
        killed = command("kill", "0", str(run_dir))
        assert (killed.returncode, killed.stdout) == (
            0, "Group 0 is killed by request, and started again by whoever keeps it running.\n",
        )  # fmt: skip
        job.wait_for(lambda: any(x["group"] == "0" for x in shown(job)["losses"]), 60, "the loss of group 0")
        job.wait_for(lambda: does(job) == {"0": "trains", "1": "trains", "2": "drained"}, 60, "two that train")
        pictures(tab, tmp_path)

        status = command("status", str(run_dir))
        assert "2 of 3 groups train" in status.stdout
        assert json.loads(command("status", str(run_dir), "--json").stdout)["schema"] == 1
        tab.open(url, 1280, 900)
        tab.wait_for(f"{word('2')} === 'drained'")
        press(tab, "2", "resume")
        job.wait_for(lambda: set(does(job).values()) == {"trains"}, 60, "all to train again")
        assert tab.said == []
        os.kill(job.process.pid, signal.SIGINT)
        gone(run_dir, 20)


def pictures(tab: Tab, folder: Path) -> None:
    """Of what is there now, each once it is drawn; nothing may be cut off at its side."""
    for name, wide, high, dark in (
        ("desktop", 1280, 900, False), ("dark", 1280, 900, True), ("phone", 390, 844, False),
    ):  # fmt: skip
        tab.open((folder / "run" / "page").read_text().strip(), wide, high, dark=dark, phone=name == "phone")
        tab.wait_for(f"{word('2')} === 'drained'")
        assert tab.picture(folder / f"{name}.png") < LARGEST
        assert tab.js("document.documentElement.scrollWidth") <= wide
        ground = tab.js("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark, ground
