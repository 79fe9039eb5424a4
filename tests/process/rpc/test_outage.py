"""Groups whose lighthouse is away, with short times: who gives up when, and what the sentence says."""

from __future__ import annotations

import threading
import time

import pytest

from tests.rank_calls import commit
from tests.unit.rpc.support import Asking, client, group, lighthouse
from tests.util import clock, scaled, wait_for
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.types import State
from torchft_x.errors import DeadlineError
from torchft_x.net import Address
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.group.client import GroupClient
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.transport import loop

USUAL = clock(1.5)


def test_nobody_gives_up_while_the_lighthouse_is_away() -> None:
    """Twice the usual time; the ranks of one group, one of them without a socket."""
    server = LighthouseServer("127.0.0.1:0", 1)
    with group("0:a", server.address(), world_size=2) as a, client(a.address()) as other:
        asks = [Asking(a, 0), Asking(other, 1)]
        first = asks[0].result().quorum
        asks[1].result()
        server.shutdown()
        state = State(1, first.id)
        asks = [Asking(a, 0, state=state, timeout=USUAL, patience=scaled(60.0))]
        asks.append(Asking(other, 1, state=state, timeout=USUAL, patience=scaled(60.0)))
        threading.Event().wait(2 * USUAL)  # nothing to wait for: that nothing happens is the point
        assert all(ask.is_alive() for ask in asks)
        with lighthouse(bind=server.address().removeprefix("http://")):
            for ask in asks:
                assert ask.result().quorum.id > first.id


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("times", [{"timeout": 0.4}, {"timeout": 0.2, "patience": 0.4}], ids=str)
def test_the_last_deadline_says_that_it_was_away(remote: bool, times: dict[str, float]) -> None:
    server = LighthouseServer("127.0.0.1:0", 1)
    with group("0:a", server.address()) as a, client(a.address()) as far:
        who: GroupServer | GroupClient = far if remote else a
        first = Asking(who).result().quorum
        server.shutdown()
        ask = Asking(who, state=State(1, first.id), **times)
        with pytest.raises(DeadlineError, match="has been away for"):
            ask.result()


@pytest.mark.parametrize("remote", [False, True])
def test_who_is_told_what_is_waited_for_waits_to_its_last_deadline(remote: bool) -> None:
    """Past its usual time: whom to go on without is the lighthouse's decision."""
    with lighthouse(min_replicas=2) as server, group("0:a", server.address()) as a, client(a.address()) as far:
        ask = Asking(far if remote else a, timeout=USUAL, patience=USUAL)
        with pytest.raises(DeadlineError, match=r"waits: New quorum not ready, only have 1 participants"):
            ask.result()


def test_a_group_that_waits_for_somebodys_lease_does_not_give_up() -> None:
    """A new lineage would need the lease's end (R9b): it may take long, and the group is told so."""
    with (
        lighthouse(heartbeat_timeout_ms=int(clock(500))) as server,
        group("0:a", server.address(), boot_id="elsewhere") as a,
    ):
        first = Asking(a).result().quorum
        Asking(a, state=State(1, first.id)).result()  # it commits, and is the only carrier
        with group("1:b", server.address()) as b:
            ask = Asking(b, timeout=clock(3.0), patience=clock(0.5))
            lost(a)
            shell = b.shell
            wait_for(lambda: shell.deadline.reason, 8.0, "the lighthouse to say what it waits for")
            with pytest.raises(DeadlineError, match="waits: No candidate holds the newest state"):
                ask.result()


def test_who_waits_for_longer_than_a_lease_gets_a_whole_one() -> None:
    """Counted from the join it would be over when the quorum comes, and the first step be dropped."""
    lease = clock(1.0)
    config = LighthouseConfig(
        min_replicas=2, join_timeout=clock(5.0), silence=SilenceLimits.all(lease / 2), lease=lease
    )
    server = LighthouseShell(config)
    port = loop.call(server.start(Address("127.0.0.1", 0)), scaled(10.0), "starting the lighthouse")
    address = f"http://127.0.0.1:{port}"
    try:
        with group("0:a", address) as a, group("1:b", address) as b:
            first, late = Asking(a, timeout=scaled(20.0)), time.monotonic() + 1.5 * lease
            wait_for(lambda: time.monotonic() > late, 20.0, "a lease to pass")
            asks = [first, Asking(b)]
            ids = {ask.result().quorum.id for ask in asks}
            assert [commit(x, id) for x in (a, b) for id in ids] == [(True, "")] * 2
    finally:
        loop.call(server.stop(), scaled(10.0), "stopping the lighthouse")


def lost(a: GroupServer) -> None:
    """Its machine is cut off: no leave, no refused connect."""

    async def cut() -> None:
        a.shell._stream._closing = True  # no new session
        await a.shell._stream.close(0.0)

    loop.call(cut(), 5.0, "cutting the session")


def test_a_leave_without_a_lighthouse_waits_for_nobody() -> None:
    server = LighthouseServer("127.0.0.1:0", 1)
    with group("0:a", server.address()) as a:
        Asking(a).result()
        server.shutdown()
        wait_for(lambda: not a.shell._stream.is_up, 10.0, "the session's end")
        ask = Asking(a, state=State(1, 1), timeout=scaled(60.0), patience=scaled(60.0))
        left = threading.Thread(target=a.close)
        left.start()
        left.join(scaled(2.0))
        assert not left.is_alive()
        with pytest.raises(Exception, match="leaving the job"):
            ask.result()
