"""``torchft_x lighthouse`` as processes: what is killed comes back at the same port, and everything ends as it should."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.started import ROOT, TORCHFT_X, Started, ended
from tests.unit.rpc.support import Asking, attempt_id, group, reporting
from tests.util import scaled, wait_for
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.core.types import State
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory

LIGHTHOUSE = (*TORCHFT_X, "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0")


class Kept(Started):
    """The command, with its child."""

    def __init__(self, folder: Path, *flags: str, **variables: str) -> None:
        self.file = folder / "address"
        command = [*LIGHTHOUSE, "--address_file", str(self.file), *flags]
        super().__init__(command, folder / "log", **variables)
        self.wait_for(lambda: self.serves(1), 20.0, "the lighthouse")
        self.address = self.file.read_text().strip()

    def serves(self, number: int) -> bool:
        return self.file.exists() and self.output().count("Lighthouse listening on") >= number

    @property
    def server(self) -> int:
        (pid,) = self.descendants()
        return pid

    def kill_server(self, number: int) -> None:
        os.kill(self.server, signal.SIGKILL)
        wait_for(lambda: self.serves(number + 1), 20.0, "the next lighthouse")


@contextlib.contextmanager
def kept(folder: Path, *flags: str, **variables: str) -> Iterator[Kept]:
    made = Kept(folder, *flags, **variables)
    try:
        yield made
    finally:
        below = made.descendants()
        made.kill()
        ended(*below)


def commit(a: object, state: State) -> State:
    """One more step: where the group stands after it."""
    reply = Asking(a, state=state).result()  # type: ignore[arg-type]
    return State(reply.quorum.top.step + 1, reply.quorum.id)


def test_groups_go_on_with_the_same_quorum_members_and_growing_ids(tmp_path: Path) -> None:
    with kept(tmp_path) as lh, group("0:a", lh.address) as a, group("1:b", lh.address) as b:
        first = [Asking(a), Asking(b)]
        before = first[0].result().quorum
        first[1].result()
        for number in (1, 2):
            lh.kill_server(number)
            assert lh.file.read_text().strip() == lh.address
            state = State(before.top.step + 1, before.id)
            asks = [Asking(a, state=state), Asking(b, state=state)]
            after = asks[0].result().quorum
            asks[1].result()
            assert after.id > before.id
            assert after.config_id == before.config_id  # nobody has built a new process group
            assert [m.replica_id for m in after.members] == ["0:a", "1:b"]
            before = after
        assert lh.output().count("the lighthouse died: killed by SIGKILL") == 2


def test_who_died_in_the_same_moment_is_not_waited_for_until_its_lease_ends(tmp_path: Path) -> None:
    """The only carrier: without what was written down, its supervisor's word would name nobody (R9b, 121 s)."""
    with kept(tmp_path) as lh:
        supervisor = reporting(lh.address, "0")
        supervisor.started(0, "attempt-0")
        with group("0:a", lh.address, attempt_id=attempt_id(0, "attempt-0"), boot_id="elsewhere") as a:
            state = commit(a, State())
            commit(a, state)
            lh.kill_server(1)
            supervisor.exited(0, "attempt-0", -9, "killed by SIGKILL")
            with group("0:b", lh.address, attempt_id=attempt_id(1, "attempt-1")) as b:
                assert [m.replica_id for m in Asking(b).result().quorum.members] == ["0:b"]
        supervisor.close()
        assert "A new lineage begins" in lh.output()


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    with kept(tmp_path) as lh:
        server = lh.server
        lh.process.send_signal(signal.SIGTERM)
        assert lh.wait() == 0
        assert not process_tree.is_alive(server)
        assert "Traceback" not in lh.output()


def test_a_local_job_takes_it_along(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with kept(tmp_path, "--launcher_pid", str(os.getpid())) as lh:  # we are its parent: it goes on
        lh.kill_server(1)
    launcher.kill()
    launcher.wait()
    done = subprocess.run([*LIGHTHOUSE, "--launcher_pid", str(launcher.pid)], cwd=ROOT, timeout=scaled(30), check=False)
    assert done.returncode == 0  # its launcher is gone


def test_the_jobs_verdict_is_the_exit_code_also_of_a_later_attempt(tmp_path: Path) -> None:
    """A group is done, and its supervisor gone, before the lighthouse dies: the next one knows."""
    run = ["--run_dir", str(tmp_path / "run")]
    with kept(tmp_path, *run, "--job_groups", "0,1") as lh:
        token = (tmp_path / "run" / "token").read_text().strip()
        zero, one = (reporting(lh.address, g, token) for g in "01")
        one.started(0, "attempt-1")
        zero.started(0, "attempt-0")
        zero.exited(0, "attempt-0", 0, "finished")
        zero.done(0, "finished")
        zero.close(scaled(10))
        lh.kill_server(1)
        wait_for(lambda: repr(one).endswith(", up)"), 20.0, "the other supervisor to be back")
        one.exited(0, "attempt-1", 0, "finished")
        one.done(0, "finished")
        one.close(scaled(10))
        assert lh.wait() == 0
        assert "All 2 groups finished." in lh.output()
        restarts = [e for e in read_events(tmp_path / "run") if e["event"] == "restart"]
        assert [e["role"] for e in restarts] == ["lighthouse"]


def test_an_earlier_jobs_state_in_the_same_directory_is_not_this_jobs(tmp_path: Path) -> None:
    run = ["--run_dir", str(tmp_path / "run"), "--job_groups", "0"]
    token = {"token": ""}
    for job in (1, 2):
        with kept(tmp_path, *run) as lh:
            token["token"] = (tmp_path / "run" / "token").read_text().strip()
            with group(f"0:{job}", lh.address, **token) as a:
                assert Asking(a).result().quorum.number == 1
            lh.file.unlink()
            lh.log.rename(tmp_path / f"stderr-{job}")
            lh.log.write_text("")
    assert "taken over" not in (tmp_path / "stderr-2").read_text()


def taken_from_it(register: LeaseDirectory) -> LeaseEntry:
    """The lease of whoever holds it, by another one."""
    while True:
        entry = register.read()
        if entry is not None:
            other = LeaseEntry(entry.epoch + 1, 0, "0f")
            if register.swap(entry, other):
                return other
