"""``torchft_x checkpoint``, and the forms that it writes and reads."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.transfer.durable.saving import load, save
from tests.torch.transfer.states import same
from tests.torch.versioned import Turned
from torchft_x.__main__ import main
from torchft_x.transfer import convert
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store


def trained() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    adamw = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    adamw.step()
    counters = {"step": 7, "batches_committed": 14, "committed_in": 3}
    parts = {"model": dict(model.state_dict()), "optim": adamw.state_dict(), "data": {"position": 5}}
    return {"torchft": counters, "parts": parts}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "a run")


def run(*words: object) -> int:
    return main(["checkpoint", *map(str, words)])


def test_ls(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls", url) == 0
    assert "no checkpoints in" in capsys.readouterr().out
    save(Store(url), trained(), 7)
    name = save(Store(url), trained(), 8, ranks=2)
    Store(url).remove(f"{name}/manifest.json")
    assert run("ls", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["step", "7", "complete"], ["step", "8", "incomplete"]]
    assert "1 rank" in lines[0]


def test_verify(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", url) == 2
    assert "there is no complete checkpoint in" in capsys.readouterr().err
    name = save(Store(url), trained(), 7)
    assert run("verify", url) == 0
    assert f"{name}: 0.0 MB are whole" in capsys.readouterr().out
    assert run("verify", url, "--step", 9) == 2
    assert "no complete checkpoint of step 9" in capsys.readouterr().err
    data = Path(url, str(name), "shard-00000.data")
    raw = bytearray(data.read_bytes())
    raw[5] ^= 1
    data.write_bytes(raw)
    assert run("verify", url) == 1
    assert "shard-00000.data is damaged" in capsys.readouterr().err


def test_through_pytorchs_form_and_back(url: str, tmp_path: Path) -> None:
    save(Store(url), trained() | {}, 7, ranks=2)
    state = load(Store(url))
    assert run("export", url, tmp_path / "dcp") == 0
    assert run("import", tmp_path / "dcp", tmp_path / "again") == 0
    assert same(load(Store(str(tmp_path / "again"))), state)
    assert newest(Store(str(tmp_path / "again"))).step == 7  # type: ignore[union-attr]


def test_pytorch_reads_what_was_exported(url: str, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = trained()
    save(Store(url), state, 7)
    assert run("export", url, tmp_path / "dcp") == 0
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    into = {"model": model.state_dict()}
    dcp.load(into, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert torch.equal(into["model"]["0.weight"], state["parts"]["model"]["0.weight"])


def test_what_pytorch_has_saved_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch.distributed.checkpoint as dcp

    parts = trained()["parts"]
    dcp.save(dict(parts), checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert run("import", tmp_path / "dcp", tmp_path / "run") == 2
    assert "give --step N" in capsys.readouterr().err
    assert run("import", tmp_path / "dcp", tmp_path / "run", "--step", 30) == 0
    state = load(Store(str(tmp_path / "run")))
    assert state["torchft"]["step"] == 30
    assert same(state["parts"], parts)


def test_safetensors(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = pytest.importorskip("safetensors.torch", reason="needs the package safetensors: pip install safetensors")
    state = trained()
    save(Store(url), state, 7)
    file = tmp_path / "model.safetensors"
    assert run("export", url, file, "--format", "safetensors") == 0
    assert same(dict(sorted(library.load_file(str(file)).items())), dict(sorted(state["parts"]["model"].items())))
    assert run("export", url, tmp_path / "optim.safetensors", "--format", "safetensors", "--part", "optim") == 0
    assert "without" in capsys.readouterr().out
    assert run("export", url, tmp_path / "x", "--format", "safetensors", "--part", "ema") == 2
    assert "--part names one of data, model, optim" in capsys.readouterr().err
    assert run("import", file, tmp_path / "run", "--format", "safetensors", "--step", 3) == 0
    found = load(Store(str(tmp_path / "run")))["parts"]
    assert set(found) == {"model"}
    assert same(dict(sorted(found["model"].items())), dict(sorted(state["parts"]["model"].items())))


@pytest.mark.parametrize(("form", "package"), [("safetensors", "safetensors"), ("dcp", "numpy")])
def test_a_missing_package_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, package: str
) -> None:  # fmt: skip
    real = importlib.import_module

    def missing(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args)

    save(Store(url), trained(), 7)
    monkeypatch.setattr(importlib, "import_module", missing)
    assert run("export", url, tmp_path / "x", "--format", form) == 2
    assert f"this form needs the package {package}; pip install {package}." in capsys.readouterr().err


def test_nothing_is_overwritten(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Store(url), trained(), 7)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    assert run("export", url, tmp_path / "there") == 2
    assert "is there already; name a new one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["import", "nowhere", "run"], "nowhere is not there"),
        (["import", ".", "run"], "that is no distributed checkpoint of PyTorch; it has no .metadata"),
        (["import", ".", "run", "--format", "safetensors"], "safetensors"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert sentence in capsys.readouterr().err


def test_another_state_has_no_parts(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Store(url), {"w": torch.ones(3)}, 7)
    assert run("export", url, tmp_path / "x") == 1
    assert "was not saved by torchft_x.Checkpoint" in capsys.readouterr().err


def test_two_names_that_would_be_one() -> None:
    pytest.importorskip("safetensors")
    with pytest.raises(ValueError, match=r"two tensors would be called 'a\.b'"):
        convert.write_safetensors({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, Path("never"), 1)


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_versions_of_modules_survive_the_conversion(tmp_path: Path, form: str) -> None:
    source, target = Turned(), Turned()
    counters = {"step": 3, "batches_committed": 6, "committed_in": 2}
    flat = convert.to_flat({"torchft": counters, "parts": {"m": source.state_dict()}})
    if form == "dcp":
        convert.write_dcp(flat, tmp_path / "new")
        back = convert.from_flat(convert.read_dcp(tmp_path / "new"), None)
        assert back["torchft"] == counters
    else:
        convert.write_safetensors(flat["m"], tmp_path / "new", 3)
        back = convert.from_flat({"m": convert.read_safetensors(tmp_path / "new")}, 3)
    target.load_state_dict(back["parts"]["m"])
    assert torch.equal(target.weight, source.weight)
