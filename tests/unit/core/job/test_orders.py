"""What a person may ask of a group, and who is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchft_x.core.job.orders import Asked, Order, Orders
from torchft_x.core.messages.job import GroupRests
from torchft_x.errors import RefusedError

RUNS = Asked("1", supervised=True, life="x", alive=True, rests=False, finished=False, reachable=True)


def test_kill_means_the_life_that_runs() -> None:
    assert Orders().give("kill", RUNS) == Order("kill", "1", "x", "killed by request")


def test_without_a_supervisor_the_group_server_is_told() -> None:
    assert Orders().give("kill", replace(RUNS, supervised=False)) is None


@pytest.mark.parametrize("kind", ["drain", "resume"])
def test_only_a_supervisor_keeps_a_group_from_being_started(kind: str) -> None:
    with pytest.raises(RefusedError, match="no supervisor here"):
        Orders().give(kind, replace(RUNS, supervised=False))


def test_drained_until_resumed() -> None:
    orders = Orders()
    assert orders.give("drain", RUNS) == Order("drain", "1", "", "drained by request")
    assert orders.drained == {"1"}
    with pytest.raises(RefusedError, match="drained already"):
        orders.give("drain", RUNS)
    assert orders.arrived("1") == Order("drain", "1", "", "drained by request")  # a supervisor that replaces another
    assert orders.arrived("2") is None
    assert orders.give("resume", replace(RUNS, alive=False, rests=True)) == Order(
        "resume", "1", "", "resumed by request"
    )
    assert orders.arrived("1") is None
    with pytest.raises(RefusedError, match="is not drained"):
        orders.give("resume", RUNS)


def test_a_lighthouse_that_was_started_again_learns_it() -> None:
    orders = Orders()
    orders.heard(GroupRests("1", True))
    assert orders.arrived("1") is not None
    orders.heard(GroupRests("1", False))
    assert orders.arrived("1") is None


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (replace(RUNS, finished=True), "Group 1 has finished"),
        (replace(RUNS, alive=False), "No process of group 1 runs now"),
        (replace(RUNS, supervised=False, reachable=False), "No process of group 1 runs now"),
    ],
)
def test_nothing_to_kill(asked: Asked, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        Orders().give("kill", asked)


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(RefusedError, match="There is no order 'pause'"):
        Orders().give("pause", RUNS)
