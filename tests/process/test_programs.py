"""Programs that end by themselves: the simulator's trace, the benchmarks' search for a peer, `torchft_x status`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import libraries
from tests.interpreters import PEER_PYTHON
from tests.process.programs import python
from tests.unit.rpc.lighthouse.page.served import served


def test_the_trace_does_not_depend_on_hashes() -> None:
    words = ("-m", "tests.sim.digest", "--first", "6", "--seeds", "1")
    first, second = (python(*words, PYTHONHASHSEED=seed, TORCHFT_X_TIME_SCALE="1").stdout for seed in "01")
    assert first == second


def test_a_missing_peer_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PEER_PYTHON, sys.executable)
    assert str(libraries.find_peer()).startswith("torchft-nightly is not installed for")
    monkeypatch.setenv(PEER_PYTHON, str(tmp_path / "nothing"))
    assert "can't be run" in str(libraries.find_peer())
    monkeypatch.delenv(PEER_PYTHON)
    monkeypatch.setattr(libraries, "ROOT", tmp_path)
    assert "scripts/test --extended makes it" in str(libraries.find_peer())


def test_as_a_process_it_loads_neither_torch_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from torchft_x.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'numpy', 'rich', 'torchx')))"
    )
    with served() as lighthouse:
        assert "at step" in python("-c", code, "status", lighthouse.run_dir(tmp_path)).stdout
