"""scripts/byte_model.py: arguments and data of the training scripts."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchft_x.errors import ConfigError

SCRIPT = Path(__file__).parents[3] / "scripts" / "byte_model.py"


@pytest.fixture(scope="module")
def byte_model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("byte_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def args(byte_model: ModuleType) -> argparse.Namespace:
    return byte_model.parse_args(
        ["--width", "16", "--heads", "2", "--layers", "1", "--seq-len", "8", "--batch-size", "3"]
    )


def test_a_batch_depends_on_seed_step_and_participant_only(byte_model: ModuleType, args: argparse.Namespace) -> None:
    data = torch.arange(256, dtype=torch.uint8)
    x, y = byte_model.get_batch(data, args, 7, 1)
    assert x.shape == y.shape == (3, 8)
    assert torch.equal(x[:, 1:], y[:, :-1])  # the target is the next byte
    again, _ = byte_model.get_batch(data, args, 7, 1)
    assert torch.equal(x, again)
    for step, participant in ((8, 1), (7, 0)):
        assert not torch.equal(x, byte_model.get_batch(data, args, step, participant)[0])


def test_the_last_byte_of_the_text_can_be_a_target(byte_model: ModuleType, args: argparse.Namespace) -> None:
    data = torch.arange(9, dtype=torch.uint8)  # room for exactly one sequence
    _, y = byte_model.get_batch(data, args, 0, 0)
    assert y[0, -1] == 8


def test_default_data_is_python_source_in_a_fixed_order_up_to_the_limit(byte_model: ModuleType) -> None:
    text = byte_model.load_bytes(None, 50_000)
    assert len(text) == 50_000
    assert b"import" in bytes(text.tolist())
    assert torch.equal(text, byte_model.load_bytes(None, 50_000))


def test_data_is_a_file_a_directory_a_glob_or_a_url(byte_model: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.md").write_bytes(b" third")

    def read(url: object) -> bytes:
        return bytes(byte_model.load_bytes(str(url), 1000).tolist())

    assert read(tmp_path / "a.txt") == b"first "
    assert read(tmp_path) == b"first second third"
    assert read(tmp_path / "*.txt") == b"first second"
    assert read(f"file://{tmp_path}/b.txt") == b"second"


@pytest.mark.parametrize("url", ["/nowhere/at/all", "/nowhere/*.txt", "nosuchscheme://x/y", "memory://nothing"])
def test_bad_data_is_named(byte_model: ModuleType, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--data .*nowhere|nosuchscheme|nothing"):
        byte_model.load_bytes(url, 1000)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--width", "10", "--heads", "3"], "--width 10 can't be divided among --heads 3"),
    ],
)
def test_a_number_that_can_not_be_used_is_a_sentence(
    byte_model: ModuleType, argv: list[str], words: str, capsys
) -> None:
    with pytest.raises(SystemExit):
        byte_model.parse_args(argv)
    assert words in capsys.readouterr().err
