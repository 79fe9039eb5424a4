"""Which run is meant, and what is wrong with the one that was named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.util import write_secret
from torchft_x import env
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.status.find import NobodyServesError, find


def a_run(folder: Path, port: int, *events: dict[str, object], torn: str = "") -> Path:
    (folder / "events").mkdir(parents=True)
    (folder / "lighthouse").write_text(f"http://127.0.0.1:{port}\n")
    write_secret(folder / "token")
    text = "".join(json.dumps(e) + "\n" for e in events) + torn
    (folder / "events" / "lighthouse-7.jsonl").write_text(text)
    return folder


def test_a_run_that_goes_on(tmp_path: Path, port: int) -> None:
    run = find(str(a_run(tmp_path / "run", port, {"t": 1.0, "event": "start"})))
    assert (run.lighthouse, run.token, run.ended) == (("127.0.0.1", port), "secret", None)
    assert "secret" not in repr(run)


def test_the_newest_run_by_default(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="There is no run below"):
        find(None)
    for age, name in ((50, "older"), (10, "newer")):
        a_run(tmp_path / "runs" / name, port)
        os.utime(tmp_path / "runs" / name / "events" / "lighthouse-7.jsonl", (1e9 - age, 1e9 - age))
    found = find(None).run_dir
    assert found.name == "newer"
    monkeypatch.setenv(env.RUN_DIR, str(tmp_path / "runs" / "older"))  # inside of a job
    found = find(None).run_dir
    assert found.name == "older"


def test_an_address(port: int) -> None:
    assert find(f"http://127.0.0.1:{port}").lighthouse == ("127.0.0.1", port)
    assert find(f"127.0.0.1:1,127.0.0.1:{port}").lighthouse == ("127.0.0.1", port)
    with pytest.raises(NobodyServesError, match=r"No lighthouse answers at http://127\.0\.0\.1:1\."):
        find("127.0.0.1:1")
    with pytest.raises(ConfigError, match="has no valid port"):
        find("http://nowhere")


def test_a_run_that_is_over_is_told_from_its_events(tmp_path: Path, port: int) -> None:
    end = {"t": 9.0, "event": "exit", "code": 0, "reason": "All 2 groups finished."}
    run = find(str(a_run(tmp_path / "run", port, {"t": 1.0, "event": "start"}, end, torn='{"t": 10.0, "ev')))
    assert run.ended == end
    assert run.lighthouse is None


def test_one_whose_lighthouse_is_gone_without_a_word(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 1, {"t": 1.0, "event": "quorum"}, torn="\x00\xff nonsense")
    with pytest.raises(NobodyServesError, match="and its events don't say how it ended"):
        find(str(folder))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "it does not exist"),
        ({"run": b"a file"}, "it does not exist"),
        ({"run/x": b""}, "there is nothing of a run in it"),
        ({"run/events/x": b""}, "no address is written down yet"),
        ({"run/events/x": b"", "run/lighthouse": b""}, "no address is written down yet"),
        ({"run/events/x": b"", "run/lighthouse": b"\xff\xfe"}, "has no valid port"),
        ({"run/events/x": b"", "run/lighthouse": b"127.0.0.1:1", "run/token": b"x"}, "the file's mode is 0644"),
    ],
)
def test_what_is_no_run_directory_or_half_written(tmp_path: Path, files: dict[str, bytes], sentence: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644)
    with pytest.raises(TorchftXError, match=sentence):
        find(str(tmp_path / "run"))


def test_an_address_that_others_may_have_written(tmp_path: Path, port: int) -> None:
    """T1: it is not believed, but how a run ended may be read by everybody."""
    folder = a_run(tmp_path / "run", port, {"t": 1.0, "event": "start"})
    (folder / "lighthouse").chmod(0o666)
    with pytest.raises(ConfigError, match=f"{folder}/lighthouse may be written by other users .mode 0666."):
        find(str(folder))
    ended = a_run(tmp_path / "ended", port, {"t": 1.0, "event": "exit"})
    ended.chmod(0o777)
    assert find(str(ended)).ended is not None
