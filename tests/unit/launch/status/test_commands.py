"""The commands at a real lighthouse, in this process and in one of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.unit.rpc.support import Asking, group
from tests.util import wait_for
from torchft_x.launch.status.commands import order, status


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
