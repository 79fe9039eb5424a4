"""What a person may ask of a group, and who is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchft_x.core.job.orders import Order, Orders, OrderTarget
from torchft_x.core.messages.job import GroupRests
from torchft_x.errors import RefusedError

RUNS = OrderTarget("1", supervised=True, attempt_token="x", alive=True, rests=False, finished=False, reachable=True)


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
    orders.receive(GroupRests("1", True))
    assert orders.arrived("1") is not None
    orders.receive(GroupRests("1", False))
    assert orders.arrived("1") is None


@pytest.mark.parametrize(
    ("kind", "target", "sentence"),
    [
        ("kill", replace(RUNS, finished=True), "Group 1 has finished"),
        ("kill", replace(RUNS, alive=False), "No process of group 1 runs now"),
        ("kill", replace(RUNS, supervised=False, reachable=False), "No process of group 1 runs now"),
        ("drain", replace(RUNS, supervised=False), "no supervisor here"),
        ("resume", replace(RUNS, supervised=False), "no supervisor here"),
        ("pause", RUNS, "There is no order 'pause'"),
    ],
)
def test_what_cannot_be_done(kind: str, target: OrderTarget, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        Orders().give(kind, target)


def test_kill_means_the_attempt_that_runs_and_without_a_supervisor_the_group_server_is_told() -> None:
    assert Orders().give("kill", RUNS) == Order("kill", "1", "x", "killed by request")
    assert Orders().give("kill", replace(RUNS, supervised=False)) is None
