"""Jobs of local_ft on both TorchX lines: what the commands say from another shell, and what is left when the first one ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extended.matrix.places import Place, Workshop
from tests.extended.matrix.table import Results, Table
from tests.unit.launch.lines import BOTH
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.record import JobRecord
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(600)]

COMMANDS = Table(
    "local_ft from another shell", ("TorchX", "torchft_x"), ("list", "status", "describe", "log", "cancel")
)
SCRIPT = """\
import os, sys, time
print("group", os.environ["REPLICA_GROUP_ID"], "is here", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("group", os.environ["REPLICA_GROUP_ID"], "is done", flush=True)
"""


class Shells:
    """A user's shells: one starts the job, others look at it. What is remembered of jobs is below `top`."""

    def __init__(self, place: Place, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.run_dir = top / "run"
        self._done = top / "done"
        monkeypatch.setenv(env.STATE_HOME, str(top / "state"))
        script = top / "job.py"
        script.write_text(SCRIPT)
        self._job = ["ft.ddp", "--script", str(script), "--run_dir", str(self.run_dir), "--", str(self._done)]

    def words(self, *options: str) -> list[str]:
        return ["run", "-s", "local_ft", *options, *self._job]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """In the foreground of a shell of its own."""
        with open(self.run_dir.with_name("output.txt"), "wb") as file:
            return subprocess.Popen(
                self.place.command(*self.words(*options)),
                cwd=self.place.folder,
                env=self.place.environ(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.run_dir.with_name("output.txt").read_text(errors="replace")

    def finish(self) -> None:
        """Let the groups end."""
        self._done.touch()

    def say(self, *words: str, code: int = 0) -> str:
        done = self.place.torchx(*words)
        text = done.stdout + done.stderr
        assert done.returncode == code, text
        assert "Traceback" not in text, text
        return text

    def job(self) -> JobRecord:
        return record.read(self.run_dir)

    def until_here(self, *groups: int) -> None:
        def there() -> bool:
            try:
                folder = Path(self.job().log_dir, "trainer")
            except record.RecordError:
                return False
            logs = [folder / str(g) / "combined.log" for g in groups]
            return all(log.exists() and "is here" in log.read_text() for log in logs)

        wait_for(there, 60, "the groups")

    def pid(self, role: str, number: int) -> int:
        roles = {r.name: r for r in self.job().roles}
        process = next(r for r in roles[role].replicas if r.id == number).process
        return 0 if process is None else process.pid

    def nothing_is_left(self) -> None:
        wait_for(lambda: not job_processes(self.run_dir), 30, f"the end of {job_processes(self.run_dir)}")


@pytest.fixture
def shells(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request) -> Iterator[Shells]:
    line, way = request.param
    made = Shells(workshop.place(line, way), tmp_path, monkeypatch)
    yield made
    process_tree.send(job_processes(made.run_dir), signal.SIGKILL)


WHEEL = [(line, "wheel") for line in BOTH]


@pytest.mark.parametrize("shells", WHEEL, indirect=True, ids="-".join)
def test_from_another_shell(shells: Shells, results: Results) -> None:
    place = shells.place
    row = (place.line, place.way)
    out = shells.say(*shells.words("-cfg", "detach=True"))
    found = re.search(r"local_ft://torchx/(\S+)$", out, re.MULTILINE)
    assert found is not None, out
    handle = found[0]
    assert "the job runs by itself" in out
    shells.until_here(0, 1)
    os.kill(shells.pid("trainer", 1), signal.SIGKILL)
    wait_for(lambda: shells.job().restarts == 1 and shells.pid("trainer", 1), 30, "the supervisor, again")

    with results.cell(COMMANDS, row, "list"):
        assert re.search(rf"{handle}\s.*RUNNING", shells.say("list", "-s", "local_ft"))
    with results.cell(COMMANDS, row, "status"):
        status = shells.say("status", handle)
        assert re.search(r"State: RUNNING\s+Num Restarts: 1\s", status), status
        assert re.search(r"\*lighthouse\[0\]:\s*RUNNING", status), status
        assert re.search(r"\*trainer\[0\]:\s*RUNNING\s", status), status
        one = status.split("trainer[1]:")[1]
        assert re.search(r"RUNNING", one), status
        assert "restarts: 1 (1 of its supervisor), last: killed by SIGKILL" in one, status
        assert shells.job().host in one, status
    with results.cell(COMMANDS, row, "describe"):
        described = shells.say("describe", handle)
        assert "'name': 'trainer'" in described
        assert "'num_replicas': 2" in described
    with results.cell(COMMANDS, row, "log"):
        log = (
            shells.say("log", f"{handle}/trainer/0,1") if not place.line.startswith("0.7") else attached(shells, handle)
        )
        assert re.search(r"trainer/0\S* group 0 is here", log), log
        assert re.search(r"trainer/1\S* torchft_x: the supervisor of group 1 was killed by SIGKILL", log), log
    with results.cell(COMMANDS, row, "cancel"):
        shells.say("cancel", handle)
        shells.nothing_is_left()
        assert "State: CANCELLED" in shells.say("status", handle)
    assert re.search(rf"{handle}\s.*CANCELLED", shells.say("list", "-s", "local_ft"))
    assert "is here" in shells.say("log", handle)


def attached(shells: Shells, handle: str) -> str:
    """The lines that `torchx log` has shown until its reader had enough."""
    log = subprocess.Popen(
        shells.place.command("log", "--tail", handle),
        cwd=shells.place.folder,
        env=shells.place.environ(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = []
    try:
        assert log.stdout is not None
        for line in log.stdout:
            lines.append(line)
            text = "".join(lines)
            if "group 0 is here" in text and "was killed by SIGKILL" in text:
                break
    finally:
        log.kill()
        log.communicate()
    return "".join(lines)


@pytest.mark.parametrize("shells", WHEEL, indirect=True, ids="-".join)
def test_jobs_that_nobody_knows(shells: Shells, tmp_path: Path) -> None:
    unknown = "local_ft://torchx/nobody-1"
    for command in ("status", "describe"):
        assert "does not exist" in shells.say(command, unknown, code=1)
    assert "there is no job nobody-1 of local_ft" in shells.say("log", unknown, code=2)
    shells.say("cancel", unknown)
    shells.say(*shells.words("-cfg", "detach=True"))
    shells.until_here(0, 1)
    handle = f"local_ft://torchx/{shells.job().app_id}"
    assert "has no trainer/7; it has lighthouse/0, trainer/0, trainer/1" in shells.say("log", f"{handle}/trainer/7")
    assert "Another job runs in the run directory" in shells.say(*shells.words(), code=2)
    shells.finish()
    wait_for(lambda: shells.job().state == "SUCCEEDED", 60, "its end")
    assert "State: SUCCEEDED" in shells.say("status", handle)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("shells", WHEEL, indirect=True, ids="-".join)
def test_the_command_that_started_it_ends(shells: Shells, how: signal.Signals) -> None:
    cli = shells.start()
    shells.until_here(0, 1)
    cli.send_signal(how)
    code = cli.wait(scaled(40))
    shells.nothing_is_left()
    assert code != 0
    assert shells.job().state == "CANCELLED"
    assert "Traceback" not in shells.output, shells.output
    if how == signal.SIGINT:
        assert "torchft_x: stopped by Ctrl-C" in shells.output, shells.output


@pytest.mark.parametrize("shells", WHEEL, indirect=True, ids="-".join)
def test_a_program_that_isnt_ours(shells: Shells, tmp_path: Path) -> None:
    options = f"run_dir={shells.run_dir}"
    out = shells.say("run", "-s", "local_ft", "-cfg", options, "utils.echo", "--msg", "hello", "--num_replicas", "2")
    assert re.search(r"echo/1\S* hello", out), out
    assert shells.job().state == "SUCCEEDED"
