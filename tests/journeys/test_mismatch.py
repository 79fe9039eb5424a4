"""Groups that must not train together: real processes, the sentence of who is refused, and the job's verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.jobs import running, torchx_ddp
from tests.started import gone

SCRIPT = "tests/journeys/differing.py"
SENTENCES = {
    "model": r"its model has 1\.weight \(\d, 4\) float32 where group \d's has 1\.weight \(\d, 4\) float32 .*"
    r"start every group with the same script and settings\.",
    "data": r"its data set is text, \d+ bytes, digest \w+ where group \d's is text, \d+ bytes, digest \w+; "
    r"give every group the same data\.",
    "size": r"its group world size is 2 where group 0's is 1; give every group the same number of workers\.",
}


@pytest.mark.parametrize("what", ["model"])
def test_the_verdict_of_a_job_says_what_differs(what: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, what, "40", script=SCRIPT), tmp_path / "job.log", run_dir) as job:
        code = job.wait(90)
        output = job.output()
        assert code != 0, output
        verdict = rf"1 of 2 groups finished, but group \d gave up on .*: torchft_x: Group \d \(host .*{SENTENCES[what]}"
        assert re.search(verdict, output), output
        assert "Traceback" not in output, output
        said = [line for line in output.splitlines() if "can't train" in line and line.startswith("trainer/")]
        assert len(said) == 2, said  # by the script, and by its supervisor
        gone(run_dir, 10)
    exits = [e for e in job.events() if e["event"] == "exit" and "attempt" in e]  # of groups
    assert sorted(e["code"] for e in exits) == [0, 2]  # nobody was started a second time
    [refusal] = [e for e in job.events() if e["event"] == "error" and e["role"] == "lighthouse"]
    group = next(e["group"] for e in exits if e["code"] == 2)
    assert refusal["replica_id"].startswith(f"{group}:")
    assert re.search(SENTENCES[what], refusal["reason"])
