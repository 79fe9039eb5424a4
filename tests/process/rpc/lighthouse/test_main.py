"""The command: flags, start-up, address file, bad input in one sentence, signals, and the job's verdict."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.started import Started
from tests.unit.rpc.support import Asking, group, reporting
from tests.util import scaled, wait_for
from torchft_x.net import parse_address
from torchft_x.rpc.coordination import LighthouseClient
from torchft_x.rpc.supervisor_client import SupervisorClient

MAX_RSS_MB = 80


class Running(Started):
    """The command as a process, serving."""

    def __init__(self, folder: Path, *flags: str) -> None:
        file = folder / "address"
        command = [sys.executable, "-m", "torchft_x.rpc.lighthouse.main", "--min_replicas", "1"]
        command += ["--bind", "127.0.0.1:0", "--address_file", str(file), *flags]
        super().__init__(command, folder / "log")
        self.wait_for(file.exists, 20.0, "the address file")
        self.address = file.read_text().strip()


@contextlib.contextmanager
def running(folder: Path, *flags: str) -> Iterator[Running]:
    with contextlib.closing(Running(folder, *flags)) as made:
        yield made


def test_it_serves_small_without_torch_and_ends_on_a_signal(tmp_path: Path) -> None:
    with running(tmp_path, "--run_dir", str(tmp_path)) as lh:
        LighthouseClient(lh.address, scaled(10.0)).heartbeat("a:1", scaled(5.0))
        status = Path(f"/proc/{lh.process.pid}/status").read_text()
        rss = int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1024  # type: ignore[union-attr]
        assert rss < MAX_RSS_MB
        assert "torch/" not in Path(f"/proc/{lh.process.pid}/maps").read_text()
        with group("a:1", lh.address) as a:
            for _ in range(3):
                Asking(a).result()
        lh.process.send_signal(signal.SIGTERM)
        code, text = lh.wait(), lh.output()
    assert code == 0
    assert f"Lighthouse listening on {lh.address}" in text
    assert "No token is set" in text
    assert text.count("Quorum! q") == 1  # one line per change, not per step
    assert "Traceback" not in text
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} (INFO|WARNING) \S", line) for line in text.splitlines())
    (events,) = (tmp_path / "events").glob("*.jsonl")
    names = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert names[:3] == ["start", "joined", "quorum"]
    assert names.count("quorum") == 1


def test_the_advertised_host_wins(tmp_path: Path) -> None:
    with running(tmp_path, "--bind", "[::]:0", "--advertise_host", "node7") as lh:
        assert parse_address(lh.address).host == "node7"


def test_a_group_that_gives_up_stops_the_job(tmp_path: Path) -> None:
    with running(tmp_path, "--job_groups", "0,1", "--job_min_replicas", "2") as lh:
        zero, one = reporting(lh.address, "0"), SupervisorClient(lh.address, "1", "host")
        stops: list[tuple[int, str]] = []
        one.callbacks.stop = lambda code, sentence: stops.append((code, sentence))
        one.start()
        one.started(0, "x")
        wait_for(
            lambda: repr(one).endswith(", up)"), what="the lighthouse to know group 1: who is not there can't be told"
        )
        zero.done(1, "group 0 crashed 5 times")
        zero.close(scaled(10))
        wait_for(lambda: stops, what="the other group to be told")
        code, text = lh.wait(), lh.output()
        one.close(0.1)
    assert code == 1
    assert stops[0][0] == 1
    assert "crashed 5 times" in stops[0][1]
    assert "crashed 5 times" in text
