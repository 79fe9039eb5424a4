"""How the scale of a session is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import machine


def session(*paths: str, ignore: str | None = None) -> pytest.Config:
    asked = SimpleNamespace(
        file_or_dir=[str(machine.ROOT / p) for p in paths], ignore=ignore and [str(machine.ROOT / ignore)]
    )
    return cast(Any, SimpleNamespace(known_args_namespace=asked))


@pytest.mark.parametrize(
    ("seconds", "scale"), [(0.9, 1.0), (2.0, 1.0), (2.1, 1.25), (2.5, 1.25), (3.0, 1.5), (12.0, 6.0)]
)
def test_the_scale_follows_from_an_import_of_torch(seconds: float, scale: float) -> None:
    assert machine.scale_for(seconds) == scale


def test_a_machine_may_be_too_slow(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        machine.scale_for(12.1)
    assert "it took 12.1 s to import torch" in capsys.readouterr().err


def test_only_a_session_without_unit_tests_is_measured() -> None:
    assert machine.needs_measure(session("tests/torch", "tests/process/rpc/test_gone.py::test_x"))
    assert not machine.needs_measure(session("tests/unit/core/test_x.py::test_x"))
    assert not machine.needs_measure(session("tests/process", "tests/unit"))
    assert not machine.needs_measure(session("tests"))
    assert not machine.needs_measure(session("tests/extended"))
    assert machine.needs_measure(session("tests/extended", ignore="tests/extended/sim"))
    assert not machine.needs_measure(session("tests", ignore="tests/extended/sim"))
    assert not machine.needs_measure(session())
