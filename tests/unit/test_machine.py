"""How the scale of a session is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import machine
from torchft_x import env


def session(*paths: str) -> pytest.Config:
    asked = SimpleNamespace(file_or_dir=[str(machine.ROOT / p) for p in paths])
    return cast(Any, SimpleNamespace(known_args_namespace=asked))


@pytest.mark.parametrize(
    ("seconds", "scale"), [(0.9, 1.0), (2.0, 1.0), (2.1, 1.25), (2.5, 1.25), (3.0, 1.5), (12.0, 6.0)]
)
def test_the_scale_follows_from_an_import_of_torch(seconds: float, scale: float) -> None:
    assert machine.scale_for(seconds) == scale


def test_only_a_session_without_unit_tests_is_measured() -> None:
    assert machine.needs_measure(session("tests/torch", "tests/process/rpc/test_gone.py::test_x"))
    assert not machine.needs_measure(session("tests/unit/core/test_x.py::test_x"))
    assert not machine.needs_measure(session("tests/process", "tests/unit"))
    assert not machine.needs_measure(session("tests"))
    assert not machine.needs_measure(session())


def test_a_scale_that_is_given_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(machine.sys.modules, "torchft_x.timing", raising=False)
    monkeypatch.setattr(machine, "_import_seconds", lambda: 4.0)
    for given, paths, scale in [("2", "tests/torch", "2"), ("", "tests/torch", "2"), ("2", "tests/unit", "1")]:
        monkeypatch.setenv(env.TIME_SCALE, given)
        machine.set_scale(session(paths))
        assert env.read(env.TIME_SCALE) == scale
