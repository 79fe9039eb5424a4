"""The commands at a real lighthouse, in this process and in one of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.unit.rpc.support import Asking, group
from tests.util import wait_for
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.launch.status import lines
from torchft_x.launch.status.commands import last_known, order, status
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, open_lease


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[Served]:
    with served() as made:
        yield made


@pytest.fixture
def run_dir(lighthouse: Served, tmp_path: Path) -> str:
    return lighthouse.run_dir(tmp_path)


def test_status_of_a_run(lighthouse: Served, run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    with group("0:x", lighthouse.address, token=TOKEN) as a:
        Asking(a).result()
        wait_for(lambda: lighthouse.groups().get("0", {}).get("does") == "trains", 5.0, "the group to train")
        assert status([run_dir]) == 0
        assert "1 of 1 groups train" in capsys.readouterr().out
        assert status([run_dir, "--json"]) == 0
        assert json.loads(capsys.readouterr().out).keys() == lighthouse.ask("/status.json").json.keys()


def test_the_pages_address_with_the_token_behind_the_fragment(
    lighthouse: Served, run_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status([run_dir, "--url"]) == 0
    url = urlsplit(capsys.readouterr().out.strip())
    assert (url.port, parse_qs(url.fragment)) == (lighthouse.page_address.port, {"token": [TOKEN]})


def test_a_kill_of_a_group_without_a_supervisor(
    lighthouse: Served, run_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[str] = []
    with group("5:x", lighthouse.address, token=TOKEN, on_kill=killed.append):
        wait_for(lambda: "5" in lighthouse.groups(), 5.0, "the group")
        assert order("kill", ["5", run_dir]) == 0
        assert capsys.readouterr().out.startswith("Group 5 is killed by request")
        assert killed == ["killed by request"]
        assert order("drain", ["5", run_dir]) == 1
        assert "no supervisor here" in capsys.readouterr().err


def test_what_cant_be(lighthouse: Served, run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert order("kill", ["nobody", run_dir]) == 1
    assert "There is no group 'nobody' here" in capsys.readouterr().err
    assert order("kill", ["0", lighthouse.address]) == 1  # without the token
    assert "token" in capsys.readouterr().err
    assert status([str(tmp_path / "elsewhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert order("drain", ["0", str(tmp_path / "elsewhere")]) == 2


def test_while_nobody_serves_the_run_directory_says_what_was_known_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = {
        "lighthouse-1": [{"t": 80.0, "event": "quorum", "reason": "g"}],
        "supervisor-1-2": [
            {"t": 10.0, "event": "start", "group": "1", "host": "n2"},
            {"t": 90.0, "event": "exit", "group": "1", "host": "n2", "reason": "worker 0 killed by SIGKILL"},
        ],
        "trainer-0-0-3": [{"t": 99.5, "event": "commit", "group": "0", "rank": 0, "step": 1523}],
        "trainer-1-0-4": [{"t": 89.0, "event": "commit", "group": "1", "rank": 0, "step": 1501}],
    }
    (tmp_path / "events").mkdir()
    for name, found in events.items():
        text = "".join(json.dumps(e) + "\n" for e in found)
        (tmp_path / "events" / f"{name}.jsonl").write_text(text)
    assert lines.text(last_known(tmp_path, 100.0)) == [
        "away at step 1,523, 0 of 2 groups train",
        "The lighthouse's last event is quorum, 20 s ago, g.",
        "",
        "group  does    step   restarts",
        "0      commit  1,523            500 ms ago",
        "1      exit    1,501            10 s ago, worker 0 killed by SIGKILL (on n2)",
    ]

    lease = tmp_path / "lighthouses/ddp-x/lease"
    lease.parent.mkdir(parents=True)
    open_lease(lease, epoch=2)  # another one's, so that nobody has given it back
    held = LeaseEntry(3, 7, "aa")
    register = LeaseDirectory(lease)
    assert register.swap(register.read(), held)
    register.leave_note(held, "http://n1:4012")
    os.utime(lease, (92.0, 92.0))
    lost = "The lease of the lighthouse at http://n1:4012 (epoch 3) was renewed last 8.0 s ago."
    assert last_known(tmp_path, 100.0)["away"] == lost
    assert register.swap(held, LeaseEntry(3, 8, ""))
    os.utime(lease, (92.0, 92.0))
    assert last_known(tmp_path, 100.0)["away"].endswith("was given back 8.0 s ago.")

    assert status([str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "1,501" in said.out
    assert "No lighthouse of the run in" in said.err
    assert status([str(tmp_path), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [group["group"] for group in found["groups"]] == ["0", "1"]
    assert order("kill", ["0", str(tmp_path)]) == 3
    assert status(["127.0.0.1:1"]) == 3
    assert capsys.readouterr().out == ""


def test_a_run_that_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    end = {"t": 1.0, "event": "exit", "code": 1, "reason": "The job failed."}
    (tmp_path / "events" / "lighthouse-1.jsonl").write_text(json.dumps(end) + "\n")
    assert status([str(tmp_path)]) == 0
    assert "failed with code 1" in capsys.readouterr().out
    assert status([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ended": end}
    assert order("kill", ["0", str(tmp_path)]) == 2
    assert "runs any more" in capsys.readouterr().err
