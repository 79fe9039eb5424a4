"""What is said over real streams about members that are silent, stopped, suspected, or pause on purpose."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.unit.rpc.support import (
    Asking,
    RawSession,
    Watched,
    attempt_id,
    client,
    group,
    hello,
    is_lost,
    join,
    known,
    lighthouse,
    members,
    reporting,
    view,
)
from tests.util import clock, wait_for
from torchft_x.core.types import AttemptId, State
from torchft_x.errors import DeadlineError
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.group.server import GroupServer


def pause_of(server: LighthouseServer, replica_id: str) -> float:
    (found,) = [m for m in view(server).members if m.replica_id == replica_id]
    return found.pause


def two(lh: LighthouseServer, a: GroupServer, b: Any) -> int:
    """Both in one quorum; its id."""
    wait_for(lambda: {"a:1", "b:1"} <= set(known(lh)), what="both to come")
    asked = [Asking(a), Asking(b)]
    replies = [x.result() for x in asked]
    assert members(replies[0]) == ["a:1", "b:1"]
    return replies[0].quorum.id


def test_a_supervisors_word_that_a_process_is_stopped_and_goes_on() -> None:
    known_by = attempt_id(0, "token")
    with lighthouse(2) as lh, group("a:1", lh.address()) as a, group("0:1", lh.address(), attempt_id=known_by) as b:
        supervisor = reporting(lh.address(), "0")
        supervisor.started(0, "token")
        watched = Watched()
        a.watch(watched.on_revoked, watched.on_end)
        wait_for(lambda: {"a:1", "0:1"} <= set(known(lh)), what="both to come")
        asked = [Asking(a), Asking(b)]
        quorum = asked[0].result().quorum
        asked[1].result()
        assert len(quorum.members) == 2
        supervisor.halted("token", "worker 0", 1.0)
        wait_for(lambda: watched.overs, what="the loss to be told")
        quorum_id, lost, reason = watched.overs[0]
        assert (quorum_id, lost) == (quorum.id, ("0:1",))
        assert "its worker 0 is stopped" in reason
        assert is_lost(lh, "0:1")
        asking = Asking(b, state=State(0, 0))  # one of its ranks asks, but while another is stopped it isn't waited for
        wait_for(lambda: is_lost(lh, "0:1"), what="the next look")
        supervisor.halted("token", "", 0.0)
        wait_for(lambda: not is_lost(lh, "0:1"), what="it to be found again")
        assert members(Asking(a).result()) == ["0:1", "a:1"]
        asking.result()
        supervisor.close()


def test_what_a_supervisor_said_is_said_again_to_the_next_lighthouse() -> None:
    first = LighthouseServer("127.0.0.1:0", 1)
    bind = first.address().removeprefix("http://")
    supervisor = reporting(first.address(), "0")
    supervisor.started(0, "token")
    supervisor.halted("token", "worker 0", 5.0)
    first.shutdown()
    with lighthouse(bind=bind) as second, group("0:1", second.address(), attempt_id=AttemptId(0, 1.0, "token")):
        wait_for(lambda: is_lost(second, "0:1"), what="the stop to be known")
        supervisor.exited(0, "token", 1, "killed")
        supervisor.started(1, "next")
        with group("0:2", second.address(), attempt_id=AttemptId(1, 2.0, "next")):
            wait_for(lambda: "0:2" in known(second), what="the next attempt")
            assert not is_lost(second, "0:2")
        supervisor.close()


def test_a_pause_is_known_when_it_begins_and_ends() -> None:
    with lighthouse() as lh, group("a:1", lh.address()) as a:
        a.pause(600.0, "evaluation")
        assert 590 < pause_of(lh, "a:1") <= 600
        a.pause(0.0, "evaluation")
        assert pause_of(lh, "a:1") == 0.0


def test_a_pause_outlives_the_lighthouse() -> None:
    first = LighthouseServer("127.0.0.1:0", 1)
    bind = first.address().removeprefix("http://")
    with group("a:1", first.address()) as a:
        a.pause(600.0, "evaluation")
        first.shutdown()
        with lighthouse(bind=bind) as second:
            wait_for(lambda: known(second) == ["a:1"] and pause_of(second, "a:1") > 500, what="the pause to be known")


@pytest.mark.parametrize("remote", [False, True])
def test_whoever_waits_for_a_group_that_pauses_waits_longer(remote: bool) -> None:
    with (
        lighthouse(2) as lh,
        group("a:1", lh.address()) as a,
        group("b:1", lh.address()) as b,
        client(b.address()) as c,
    ):
        quorum_id = two(lh, a, b)
        a.pause(600.0, "evaluation")
        state = State(1, quorum_id)
        asking = Asking(c if remote else b, state=state, timeout=clock(1.5))
        asking.join(clock(3.5))
        assert asking.is_alive()  # it has waited twice as long as it would
        a.pause(0.0, "evaluation")
        Asking(a, state=state)
        assert members(asking.result()) == ["a:1", "b:1"]


@pytest.mark.parametrize("remote", [False, True])
def test_after_the_pause_the_time_is_over_as_ever(remote: bool) -> None:
    with (
        lighthouse(2) as lh,
        group("a:1", lh.address()) as a,
        group("b:1", lh.address()) as b,
        client(b.address()) as c,
    ):
        quorum_id = two(lh, a, b)
        a.pause(clock(2.5), "evaluation")
        began = time.monotonic()
        asking = Asking(c if remote else b, state=State(1, quorum_id), timeout=clock(1.5))
        with pytest.raises(DeadlineError):
            asking.result()
        assert time.monotonic() - began > clock(2.5)


def test_a_suspect_is_probed_before_the_join_says_so() -> None:
    """Its session stands, but nobody listens at its address; only the suspicion tells."""
    with lighthouse(2) as lh, group("b:1", lh.address()) as b:
        session = RawSession(lh.address())
        session.send(hello())
        session.send(join())
        asked = Asking(b)
        quorum = asked.result().quorum
        assert [x.replica_id for x in quorum.members] == ["a:1", "b:1"]
        watched = Watched()
        b.watch(watched.on_revoked, watched.on_end)
        b.suspect(("a:1",))
        wait_for(lambda: watched.overs, what="the loss to be told")
        assert "refuses connections" in watched.overs[0][2]
        session.close()
