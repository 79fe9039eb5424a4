"""A supervisor's reports arrive in the end, and orders come back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.rpc.support import attempt_id, group, known, lighthouse, reporting
from tests.util import free_port, scaled, wait_for
from torchft_x.errors import RefusedError
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.supervisor_client import REFUSED_CODE, SupervisorClient


def test_a_report_made_while_the_lighthouse_is_away_arrives_before_the_supervisor_ends() -> None:
    bind = f"127.0.0.1:{free_port()}"
    first, heard = LighthouseServer(bind, 1), [0.0, 0.0]

    def has_pinged() -> bool:
        heard.extend(s["heard"] for s in first._shell.status()["supervisors"])
        return heard[-1] < heard[-2]

    supervisor = reporting(first.address(), "a")
    wait_for(has_pinged, what="a ping of the supervisor")
    first.shutdown()
    supervisor.started(0, "token")
    supervisor.exited(0, "token", 1, "exit code 1")
    with lighthouse(bind=bind) as second:
        supervisor.close(scaled(10))
        with pytest.raises(RefusedError, match="its supervisor has reported that this process ended"):
            group("a:1", second.address(), attempt_id=attempt_id(0, "token")).__enter__()
        wait_for(lambda: second._shell.status()["supervisors"] == [], what="the supervisor to be gone")


def test_every_end_is_told_again_however_many_there_were() -> None:
    """Somebody may wait for the proof of any of them, for as long as a lease lasts."""
    supervisor, attempts = SupervisorClient("http://127.0.0.1:9", "a", "host"), 20
    for i in range(attempts):
        supervisor.exited(i, f"token-{i}", -9, "killed by SIGKILL")
    wait_for(lambda: len(supervisor._reports) == attempts, what="the ends to be kept")
    sent: list[bytes] = []
    supervisor._send = sent.append  # type: ignore[method-assign]
    supervisor._up()
    ends = [pb.SupervisorUp.FromString(data).exited for data in sent]
    assert {e.attempt_token: e.code for e in ends} == {f"token-{i}": -9 for i in range(attempts)}
    supervisor.close(flush=0.0)


@contextlib.contextmanager
def supervisor(
    address: str, group: str = "0", **options: Any
) -> Iterator[tuple[SupervisorClient, list[int], list[tuple]]]:
    """A client, the numbers that it is told, and its orders to stop, each with the thread it came on."""
    client = SupervisorClient(address, group, "host", **options)
    told: list[int] = []
    stops: list[tuple] = []
    client.callbacks.number = told.append
    client.callbacks.stop = lambda code, text: stops.append((code, text, threading.current_thread().name))
    client.start()
    try:
        yield client, told, stops
    finally:
        client.close()


def test_a_supervisor_that_replaces_another_is_told_to_go_on_counting() -> None:
    with lighthouse() as lh:  # for itself: it knows of no job
        with supervisor(lh.address()) as (first, told, _):
            wait_for(lambda: told == [0], what="the first number")
            first.started(4, "token")
            first.close(scaled(10))
        with supervisor(lh.address()) as (_, told, _):
            wait_for(lambda: told == [5], what="the second's number")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_supervisor_whose_attempt_was_fenced_is_told_what_is_above_the_other(nodes: int) -> None:
    """The lighthouse is a new one, and an attempt of a supervisor before this one comes back after the welcome."""
    with lighthouse() as lh, supervisor(lh.address(), nodes=nodes) as (client, told, _):
        wait_for(lambda: told == [0], what="the first number")
        with group("ddp_0:old", lh.address(), attempt_id=attempt_id(3)):
            wait_for(lambda: known(lh), what="the older attempt")
            client.exited(0, "token", 1, "fenced")
            wait_for(lambda: told == [0, 4], what="the number above it")


def test_an_exit_without_surprise_is_answered_with_no_number() -> None:
    with lighthouse() as lh, supervisor(lh.address()) as (client, told, _):
        client.started(0, "token")
        client.exited(0, "token", 1, "x")
        client.close(scaled(10))  # all is answered
        wait_for(lambda: "torchft_x-supervisor-0" not in [t.name for t in threading.enumerate()], what="the last call")
        assert told in ([0], [1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "wrong"}, "token"),
        ({"token": "secret", "sidecar": "eval"}, "not for both"),
    ],  # of a group and a sidecar
)
def test_a_refused_supervisor_is_told_to_stop_on_a_thread_of_its_own(options: dict[str, str], words: str) -> None:
    with lighthouse(token="secret") as lh, supervisor(lh.address(), "a", **options) as (_, _, stops):
        wait_for(lambda: stops, what="the refusal")
        code, sentence, thread = stops[0]
        assert code == REFUSED_CODE
        assert words in sentence
        assert thread != "torchft_x-rpc"


def test_nobody_at_the_address_blocks_nothing() -> None:
    begun = time.monotonic()
    client = reporting("http://127.0.0.1:9", "a")
    client.started(0, "x")
    client.done(0, "finished")
    client.close(flush=0.1)
    assert time.monotonic() - begun < scaled(5.0)
    assert "away" in repr(client)


def sidecars(server: LighthouseServer) -> Mapping[str, Mapping[str, Any]]:
    return server._shell._supervisors.job(frozenset()).sidecars


def test_a_sidecar_is_known_by_name_and_is_no_group() -> None:
    with lighthouse() as lh, supervisor(lh.address(), "", sidecar="eval") as (made, _, stops):
        wait_for(lambda: "eval" in sidecars(lh), what="the sidecar to be known")
        assert lh._shell.status()["supervisors"] == []
        wait_for(lambda: made.away() == 0.0, what="the lighthouse's answer to be heard")
        made.started(0, "attempt")
        made.exited(0, "attempt", 1, "exit code 1")
        made.done(1, "it gave up")
        made.close(scaled(10))
        assert sidecars(lh)["eval"] == {"state": "failed", "host": "host", "trouble": "it gave up"}
        assert list(lh._shell.recorder.attempts) == []
        assert stops == []


def test_away_counts_from_the_last_touch() -> None:
    with lighthouse() as lh, supervisor(lh.address(), "", sidecar="eval") as (made, _, _):
        wait_for(lambda: made.away() == 0.0, what="the session")
        lh.shutdown()
        wait_for(lambda: made.away() > 0.0, what="the end of the session to be seen")
