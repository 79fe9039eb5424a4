"""Several lighthouses and groups under supervisors, as processes; and a network between them that can be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.journeys.jobs import ROOT, SMALL, Job
from tests.scenario.check import check_params
from tests.util import free_port, scaled, wait_for
from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.net import parse_address
from torchft_x.observe.processes import job_processes
from torchft_x.rpc.status_query import lighthouse_status

TOKEN = "secret"
SERVES = "Lighthouse listening on"
STANDS_BY = "This lighthouse stands by;"


class House:
    """A lighthouse at an address, one process after the other. All of a `folder` share ``shared`` in it."""

    def __init__(self, folder: Path, place: int) -> None:
        self.lease_dir = folder / "shared"
        self.lease_dir.mkdir(exist_ok=True)
        self.folder = folder / f"lighthouse{place}"
        self.folder.mkdir()
        self.place = place
        self.address = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        """Returns when it serves, or stands by."""
        command = [sys.executable, "-m", "torchft_x", "lighthouse", "--lease_dir", str(self.lease_dir)]
        command += ["--min_replicas", "1", "--run_dir", str(self.folder)]
        before = self.answers
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--bind", self.address.removeprefix("http://"), *flags],
                cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: self.answers > before or self.ended, 30, f"lighthouse {self.place}")
        assert not self.ended, self.said()

    @property
    def answers(self) -> int:
        """How often it has begun to answer."""
        return self.said().count(SERVES) + self.said().count(STANDS_BY)

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def server(self) -> int:
        """The process that serves, or stands by."""
        assert self.process is not None
        found = [p for p in process_tree.descendants(self.process.pid) if b"rpc.lighthouse.main" in _cmdline(p)]
        return max(found)

    def kill(self) -> None:
        """SIGKILL for it and for what would start it again."""
        if self.process is not None:
            process_tree.send([self.process.pid, *process_tree.descendants(self.process.pid)], signal.SIGKILL)
            self.process.wait(scaled(10))

    def kill_once(self) -> None:
        """SIGKILL for the server; returns when another one answers."""
        before = self.answers
        assert self.process is not None
        process_tree.send(process_tree.descendants(self.process.pid), signal.SIGKILL)
        wait_for(lambda: self.answers > before, 30, f"lighthouse {self.place} again")

    def said(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def status(self) -> dict[str, Any]:
        return lighthouse_status(parse_address(self.address), TOKEN, scaled(5.0))

    @property
    def serves(self) -> bool:
        return "members" in self.status()

    def here(self) -> set[str]:
        """Groups that have a session."""
        return {m["replica_id"].split(":")[0] for m in self.status().get("members", []) if m["kind"] == "session"}

    @property
    def quorum(self) -> int:
        """Id of the quorum it has issued or taken over; 0: none."""
        return int((self.status().get("quorum") or {"id": 0})["id"])


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def environment(**variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHFT", "TORCHX")) or k == env.TIME_SCALE}
    return {**clean, "PYTHONPATH": str(ROOT), env.TOKEN: TOKEN, env.ADVERTISE_HOST: "127.0.0.1", **variables}


class Groups(Job):
    """Supervisors of groups, whose events and dumps are in one run directory."""

    def __init__(self, folder: Path) -> None:
        (folder / "log").touch()
        super().__init__(subprocess.Popen(["sleep", "3600"]), folder / "log", folder / "run")  # the processes are below
        self.dumps = folder / "dumps"
        self.supervisors: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, group: str, lighthouses: Sequence[str], groups: int, **variables: str) -> None:
        command = [sys.executable, "-m", "torchft_x", "supervise", "--group", group, "--groups", str(groups)]
        command += ["--run_dir", str(self.run_dir), "--max_restarts", "100", "--", "scripts/train_ddp.py"]
        command += ["--steps", "100000", "--dump-params", str(self.dumps), "--pace", "0.04", *SMALL]
        with self.log.open("ab") as log:
            self.supervisors[group] = subprocess.Popen(
                command, cwd=ROOT, env=environment(**{env.LIGHTHOUSE: ",".join(lighthouses), **variables}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def furthest(self, group: str | None = None) -> int:
        """The newest step of all, or of a group."""
        steps = (e for e in self.events() if e["event"] == "commit" and group in (None, e.get("group")))
        return max((int(e["step"]) + 1 for e in steps), default=0)

    def go_on(self, steps: int, seconds: float, what: str, group: str | None = None) -> None:
        goal = self.furthest(group) + steps
        self.wait_for(lambda: self.furthest(group) >= goal, seconds, what)

    def lives(self) -> dict[str, int]:
        """How often each group was started."""
        starts = [e["group"] for e in self.events() if e.get("role") == "supervisor" and e["event"] == "start"]
        return {g: starts.count(g) for g in sorted(set(starts))}

    def missed(self, group: str) -> bool:
        """Whether a step is missing in what the group has committed."""
        steps = [int(e["step"]) for e in self.events() if e["event"] == "commit" and e.get("group") == group]
        return steps != list(range(steps[0], steps[0] + len(steps)))

    def stop(self) -> None:
        """End all processes; what they have written stays."""
        for pid in {*job_processes(self.run_dir), *(p.pid for p in self.supervisors.values())}:
            process_tree.send([pid], signal.SIGKILL)
        for process in [*self.supervisors.values(), self.process]:
            process.kill()
            process.wait(scaled(10))

    def findings(self) -> list[str]:
        """Of the outside checker, of whole dumps: the last of each life may have been cut short."""
        dumps, last = [], {}
        for path in sorted(self.dumps.glob("*.bin"), key=lambda p: p.stat().st_mtime):
            last[path.name.rsplit("-s", 1)[0]] = path
        for path in sorted(self.dumps.glob("*.bin")):
            try:
                dumps.append(check_params.read_dump(path))
            except ValueError:
                assert path in last.values(), f"{path} is damaged"
        assert dumps
        return check_params.check(dumps)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[House, House, Groups]]:
    """The first lighthouse and a standby, not started, and no group yet."""
    first, standby, job = House(folder, 0), House(folder, 1), Groups(folder)
    try:
        yield first, standby, job
    finally:
        job.stop()
        first.kill()
        standby.kill()
