"""Event logs of invented runs, in the form in which real processes write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOOT = 1_700_000_000.0  # Unix time in seconds at which the monotonic clocks of these hosts were 0


class Log:
    """The file of one process. Times are seconds of the run. `ahead`: seconds by which the host's clock is fast."""

    def __init__(
        self, run_dir: Path, role: str, pid: int, *, uptime: float = 100.0, ahead: float = 0.0, **common: Any
    ) -> None:
        (run_dir / "events").mkdir(parents=True, exist_ok=True)
        who = "-".join(str(x).replace("/", "_") for x in (role, common.get("group", ""), common.get("rank", 0), pid))
        self.path = run_dir / "events" / f"{who.encode('ascii', 'replace').decode()[:80]}.jsonl"
        self._common = {"pid": pid, "role": role, **common}
        self._uptime, self._ahead = uptime, ahead

    def line(self, at: float, event: str, **fields: Any) -> str:
        t = BOOT + at + self._ahead
        return json.dumps({"t": t, "mono": self._uptime + at, **self._common, "event": event, **fields}) + "\n"

    def tell(self, at: float, event: str, **fields: Any) -> None:
        with self.path.open("a") as f:
            f.write(self.line(at, event, **fields))


class Job:
    """Groups of one worker each that commit ten steps a second. Group 1 is killed at 10.0 s and is back at 12 s."""

    def __init__(self, run_dir: Path, names: tuple[str, ...] = ("0", "1", "2"), *, ahead: float = 0.0) -> None:
        self.run_dir, self.names = run_dir, names
        self.lighthouse = Log(run_dir, "lighthouse", 1)
        self.supervisors = {g: Log(run_dir, "supervisor", 10 + k, group=g) for k, g in enumerate(names)}
        # The last group is on a host of its own, whose clocks are independent of the others'.
        last = {"uptime": 5000.0, "ahead": ahead} if ahead else {}
        self.trainers = {
            g: Log(run_dir, "trainer", 20 + k, group=g, rank=0, attempt=0, replica_id=f"{g}:a", **(last if k == len(names) - 1 else {}))
            for k, g in enumerate(names)
        }  # fmt: skip

    def begin(self) -> None:
        members = [f"{g}:a" for g in self.names]
        self.lighthouse.tell(0.0, "start", address="http://here:1")
        self.lighthouse.tell(2.0, "quorum", quorum=100, number=1, step=0, members=members)
        for g in self.names:
            self.supervisors[g].tell(0.5, "start", attempt=0, attempt_token="x")
            self.trainers[g].tell(1.5, "joined", step=0)
            self.trainers[g].tell(2.001, "quorum", quorum=100, number=1, step=0, members=members, healing=[])

    def steps(self, first: int, last: int, at: float, quorum: int, groups: tuple[str, ...], pace: float = 0.1) -> None:
        """Commit these steps, the first at `at`."""
        for g in groups:
            with self.trainers[g].path.open("a") as f:
                f.writelines(
                    self.trainers[g].line(
                        at + pace * (s - first), "commit", step=s, quorum=quorum, participants=len(groups),
                        duration=pace, bytes=1000,
                    )
                    for s in range(first, last + 1)
                )  # fmt: skip

    def a_kill(self) -> None:
        """Write all events around the kill of the second group at 10.0 s."""
        self.begin()
        victim, others = self.names[1], tuple(g for g in self.names if g != self.names[1])
        self.steps(0, 78, 2.1, 100, self.names)  # the last commit is at 9.9 s
        rest = [f"{g}:a" for g in others]
        self.supervisors[victim].tell(10.001, "exit", attempt=0, code=-9, reason="worker 0 killed by SIGKILL")
        self.supervisors[victim].tell(10.002, "restart", attempt=1, delay=0.0, reason="worker 0 killed by SIGKILL")
        self.lighthouse.tell(10.02, "member_lost", replica_id=f"{victim}:a", quorum=100, reason="refused")
        self.lighthouse.tell(10.05, "quorum", quorum=101, number=2, step=79, members=rest)
        for k, g in enumerate(others):
            log = self.trainers[g]
            log.tell(10.03, "member_lost", quorum=100, lost=f"{victim}:a", reason=f"{victim}:a is lost: refused.")
            log.tell(10.04 + 0.001 * k, "abort", quorum=100, step=79, reason="lost")
            log.tell(10.06, "quorum", quorum=101, number=2, step=79, members=rest, healing=[])
            log.tell(10.061, "redo", step=79, quorum=101)
        self.steps(79, 98, 10.1, 101, others)  # the last commit is at 12.0 s
        self.supervisors[victim].tell(10.01, "start", attempt=1, attempt_token="y")
        self.trainers[victim] = Log(
            self.run_dir, "trainer", 30, group=victim, rank=0, attempt=1, replica_id=f"{victim}:b"
        )
        log = self.trainers[victim]
        log.tell(11.5, "joined", step=0)
        everybody = [*rest, f"{victim}:b"]
        self.lighthouse.tell(12.01, "quorum", quorum=102, number=3, step=99, members=everybody)
        for g in self.names:
            self.trainers[g].tell(
                12.02, "quorum", quorum=102, number=3, step=99, members=everybody, healing=[f"{victim}:b"]
            )
        log.tell(12.05, "heal_end", quorum=102, step=99, duration=0.02)
        self.steps(99, 120, 12.1, 102, self.names)

    def end(self, at: float = 14.3) -> None:
        for g in self.names:
            self.trainers[g].tell(at, "leave", step=121)
            self.supervisors[g].tell(at + 0.2, "exit", attempt=1 if g == self.names[1] else 0, code=0, reason="done")
        self.lighthouse.tell(at + 0.3, "exit", code=0, reason="All groups finished.", step=121)


def killed(run_dir: Path, *names: str, ahead: float = 0.0) -> Job:
    """Write a job whose second group was killed, and that ended well."""
    job = Job(run_dir, names or ("0", "1", "2"), ahead=ahead)
    job.a_kill()
    job.end()
    return job
