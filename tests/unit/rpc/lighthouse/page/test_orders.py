"""Orders at a real lighthouse with the real client of a supervisor: who is told what, and what is shown of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.util import wait_for
from torchft_x.rpc.supervisor.client import SupervisorClient


@contextlib.contextmanager
def supervisor(page: Served, group: str = "0") -> Iterator[tuple[SupervisorClient, list[tuple[str, str, str]]]]:
    """And the orders that reach it."""
    heard: list[tuple[str, str, str]] = []
    client = SupervisorClient(page.address, group, "node-a", "boot", TOKEN)
    client.on_order(lambda *order: heard.append(order))
    try:
        yield client, heard
    finally:
        client.close(0.0)


def test_a_supervisor_that_is_done_takes_no_orders() -> None:
    with served(groups=("0", "1")) as page, supervisor(page) as (client, _):
        client.done(0, "")
        wait_for(lambda: page.groups()["0"]["does"] == "finished", 5.0, "its end")
        assert page.order("kill", "0").json["error"] == "Group 0 has finished: there is nothing of it to kill."
