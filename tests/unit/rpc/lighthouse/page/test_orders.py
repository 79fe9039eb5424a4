"""Orders at a real lighthouse with the real client of a supervisor: who is told what, and what is shown of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.util import wait_for
from torchft_x.core.messages.job import (
    AttemptStarted,
    GroupRests,
    Order,
    RosterEvent,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)
from torchft_x.errors import RefusedError
from torchft_x.observe.view.attempts import AttemptTable
from torchft_x.rpc.lighthouse.page import recorder
from torchft_x.rpc.lighthouse.page.orders import OrderDesk
from torchft_x.rpc.supervisor_client import SupervisorClient


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is an old overview."""
    monkeypatch.setattr(recorder, "FRESH", 0.0)


@contextlib.contextmanager
def supervisor(page: Served, group: str = "0") -> Iterator[tuple[SupervisorClient, list[tuple[str, str, str]]]]:
    """And the orders that reach it."""
    heard: list[tuple[str, str, str]] = []
    client = SupervisorClient(page.address, group, "node-a", TOKEN)
    client.callbacks.order = lambda *order: heard.append(order)
    client.start()
    try:
        yield client, heard
    finally:
        client.close(0.0)


def test_a_supervisor_that_is_done_takes_no_orders() -> None:
    with served(groups=("0", "1")) as page, supervisor(page) as (client, _):
        client.done(0, "")
        wait_for(lambda: page.groups()["0"]["does"] == "finished", 5.0, "its end")
        assert page.order("kill", "0").json["error"] == "Group 0 has finished: there is nothing of it to kill."


DRAIN = ("drain", "", "drained by request")


def test_a_kill_names_the_attempt_that_runs() -> None:
    with served(groups=("0", "1")) as page, supervisor(page) as (client, heard):
        client.started(0, "attempt-0")
        wait_for(lambda: page.groups()["0"]["supervised"], 5.0, "the supervisor")
        answer = wait_for(lambda: (a := page.order("kill", "0")).status == 200 and a, 5.0, "the attempt to be known")
        assert answer.json["done"].startswith("Group 0 is killed by request")
        wait_for(lambda: heard == [("kill", "attempt-0", "killed by request")], 5.0, "the order")
        client.exited(0, "attempt-0", -9, "killed by request")
        wait_for(lambda: page.order("kill", "0").status == 409, 5.0, "nothing to kill any more")
        wait_for(lambda: page.groups()["0"]["does"] == "restarts", 5.0, "that to be shown")


def test_a_group_that_was_drained_rests_whoever_comes() -> None:
    with served(groups=("0", "1")) as page:
        with supervisor(page) as (client, heard):
            client.started(0, "attempt-0")
            wait_for(lambda: page.groups()["0"]["supervised"], 5.0, "the supervisor")
            assert page.order("drain", "0").status == 200
            assert page.order("drain", "0").status == 409
            wait_for(lambda: heard == [DRAIN], 5.0, "the order")
            wait_for(lambda: page.groups()["0"]["does"] == "drains", 5.0, "that to be shown")
            client.exited(0, "attempt-0", 143, "drained by request")
            client.rests(True)
            wait_for(lambda: page.groups()["0"]["does"] == "drained", 5.0, "its rest")
            assert "0" not in page.shell.machine._members.supervisors.groups  # nobody waits for it
        with supervisor(page) as (client, heard):  # one that replaces it
            wait_for(lambda: heard == [DRAIN], 5.0, "the same order")
            client.rests(True)
            assert page.order("resume", "0").status == 200
            wait_for(lambda: heard[-1][0] == "resume", 5.0, "the order")
            client.rests(False)
            client.started(1, "attempt-1")
            wait_for(lambda: page.groups()["0"]["does"] == "starts", 5.0, "its next attempt")


def test_an_order_is_repeated_to_the_next_supervisor() -> None:
    with served(groups=("0", "1")) as page:
        with supervisor(page):
            wait_for(lambda: page.groups()["0"]["supervised"], 5.0, "the supervisor")
            assert page.order("drain", "0").status == 200
        with supervisor(page) as (_, heard):
            wait_for(lambda: heard == [DRAIN], 5.0, "the order")


def test_a_job_is_paused_and_resumed_as_a_whole() -> None:
    with served(groups=("0", "1")) as page, supervisor(page) as (zero, of_0), supervisor(page, "1") as (one, of_1):
        for client, token in ((zero, "attempt-0"), (one, "attempt-1")):
            client.started(0, token)
        wait_for(lambda: all(page.groups()[g]["supervised"] for g in "01"), 5.0, "the supervisors")
        assert page.order("drain", "0").status == 200
        assert page.order("drain", "*").json["done"].startswith("The job is paused by request: groups 1 leave at")
        assert page.order("drain", "*").status == 409
        wait_for(lambda: (of_0, of_1) == ([DRAIN], [DRAIN]), 5.0, "the orders")
        assert page.order("resume", "*").json["done"] == "The job is resumed by request: groups 0, 1."
        assert page.order("resume", "*").json["error"] == "No group is drained."
        assert page.order("kill", "*").status == 409


HERE, STARTED = SupervisorHere("1", "h", stream=1), AttemptStarted("1", 0, "x")


class Desk:
    """An `OrderDesk` without a network, after these reports of supervisors."""

    def __init__(self, *events: RosterEvent, addresses: tuple[str, ...] = ()) -> None:
        self.sent: list[Order] = []
        attempts = AttemptTable()
        self.desk = OrderDesk(attempts, TOKEN, self.sent.append, lambda _: addresses, lambda _: None)
        for event in events:
            attempts.receive(event)
            self.desk.receive(event)

    def give(self, kind: str, group: str = "1") -> str:
        return asyncio.run(self.desk.give(kind, group))


def test_a_lighthouse_that_was_started_again_learns_of_a_drain() -> None:
    assert Desk(GroupRests("1", True), HERE).sent == [Order("drain", "1", "", "drained by request")]
    assert Desk(GroupRests("1", True), GroupRests("1", False), HERE).sent == []


@pytest.mark.parametrize(
    ("kind", "events", "sentence"),
    [
        ("kill", (HERE, STARTED, SupervisorFinished("1", 0, "")), "Group 1 has finished"),
        ("kill", (HERE,), "No process of group 1 runs now"),
        ("kill", (HERE, STARTED, SupervisorGone("1", stream=1)), "No process of group 1 runs now"),
        ("drain", (HERE, SupervisorGone("1", stream=1)), "no supervisor here"),
        ("resume", (HERE, SupervisorGone("1", stream=1)), "no supervisor here"),
        ("resume", (HERE,), "is not drained"),
        ("drain", (HERE, GroupRests("1", True)), "is drained already"),
        ("pause", (HERE,), "There is no order 'pause'"),
        ("kill", (), "There is no group '1' here"),
    ],
)
def test_what_cannot_be_done(kind: str, events: tuple[RosterEvent, ...], sentence: str) -> None:
    desk = Desk(*events)
    with pytest.raises(RefusedError, match=sentence):
        desk.give(kind)
    assert desk.sent == []


def test_a_group_server_is_told_to_exit_where_no_supervisor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    async def exit_(self: OrderDesk, group: str, address: str) -> None:
        told.append((group, address))

    monkeypatch.setattr(OrderDesk, "_exit", exit_)
    desk = Desk(addresses=("http://h:1",))
    assert desk.give("kill").startswith("Group 1 is killed by request")
    assert (told, desk.sent) == ([("1", "http://h:1")], [])
