"""A supervisor's reports arrive in the end, and orders come back."""

from __future__ import annotations

import threading
import time

import pytest

from tests.unit.rpc.support import LOCAL, group, is_marked, known, life, lighthouse
from tests.util import scaled, wait_for
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.supervisor.client import KEPT_EXITS, REFUSED_CODE, SupervisorClient


def test_a_report_made_while_the_lighthouse_is_away_arrives_later() -> None:
    first = LighthouseServer(LOCAL, 1)
    bind = first.address().removeprefix("http://")
    supervisor = SupervisorClient(first.address(), "a", "host", "boot")
    wait_for(lambda: first.status()["announced"] == ["a"], what="the supervisor to be announced")
    first.shutdown()
    supervisor.started(0, "token")
    supervisor.exited(0, "token", 1, "exit code 1")
    with lighthouse(bind=bind) as second, group("a:1", second.address(), life=life(0, "token")):
        wait_for(lambda: second.status()["announced"] == ["a"], what="the supervisor to come back")
        supervisor.exited(0, "token", 1, "exit code 1")

        wait_for(lambda: is_marked(second, "a:1", "over"), what="the end of that life to be known")
        supervisor.close()
        wait_for(lambda: second.status()["announced"] == [], what="the supervisor to be gone")


def test_every_end_is_told_again_however_many_there_were() -> None:
    """Somebody may wait for the proof of any of them, for as long as a lease lasts."""
    supervisor, lives = SupervisorClient("http://127.0.0.1:9", "a", "host", "boot"), KEPT_EXITS + 5
    for i in range(lives):
        supervisor.exited(i, f"token-{i}", -9, "killed by SIGKILL")
    wait_for(lambda: (len(supervisor._reports), len(supervisor._ends)) == (KEPT_EXITS, 5), what="the ends to be kept")
    sent: list[bytes] = []
    supervisor._send = sent.append  # type: ignore[method-assign]
    supervisor._up()
    ends = [pb.SupervisorUp.FromString(data).exited for data in sent]
    assert {e.life: e.code for e in ends} == {f"token-{i}": -9 for i in range(lives)}
    supervisor.close(flush=0.0)


def numbers(supervisor: SupervisorClient) -> list[int]:
    """What it is told, in order, from now on."""
    told: list[int] = []
    supervisor.on_number(told.append)
    return told


def test_a_supervisor_that_replaces_another_is_told_to_go_on_counting() -> None:
    with lighthouse() as lh:  # for itself: it knows of no job
        first = SupervisorClient(lh.address(), "0", "host", "boot")
        told = numbers(first)
        wait_for(lambda: told == [0], what="the first number")
        first.started(4, "token")
        first.close(scaled(10))
        second = SupervisorClient(lh.address(), "0", "host", "boot")
        told_second = numbers(second)
        wait_for(lambda: told_second == [5], what="the second's number")
        second.close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_supervisor_whose_life_was_fenced_is_told_what_is_above_the_other(nodes: int) -> None:
    """The lighthouse is a new one, and a life of a supervisor before this one comes back after the welcome."""
    with lighthouse() as lh:
        supervisor = SupervisorClient(lh.address(), "0", "host", "boot", nodes=nodes)
        told = numbers(supervisor)
        wait_for(lambda: told == [0], what="the first number")
        with group("ddp_0:old", lh.address(), life=life(3)):
            wait_for(lambda: known(lh), what="the older life")
            report = supervisor.exited if nodes == 1 else supervisor.ended
            report(0, "token", 1, "fenced")
            wait_for(lambda: told == [0, 4], what="the number above it")
        supervisor.close()


def test_an_exit_without_surprise_is_answered_with_no_number() -> None:
    with lighthouse() as lh:
        supervisor = SupervisorClient(lh.address(), "0", "host", "boot")
        told = numbers(supervisor)
        supervisor.started(0, "token")
        supervisor.exited(0, "token", 1, "x")
        supervisor.close(scaled(10))  # all is answered
        wait_for(lambda: "torchft_x-supervisor-0" not in [t.name for t in threading.enumerate()], what="the last call")
        assert told in ([0], [1])


def test_a_refused_supervisor_is_told_to_stop_on_a_thread_of_its_own() -> None:
    with lighthouse(token="secret") as lh:
        supervisor = SupervisorClient(lh.address(), "a", "host", "boot", token="wrong")
        stops: list[tuple[int, str, str]] = []
        supervisor.on_stop(lambda code, text: stops.append((code, text, threading.current_thread().name)))
        wait_for(lambda: stops, what="the refusal")
        code, sentence, thread = stops[0]
        assert code == REFUSED_CODE
        assert "token" in sentence
        assert thread != "torchft_x-rpc"
        supervisor.close()


def test_nobody_at_the_address_blocks_nothing() -> None:
    begun = time.monotonic()
    supervisor = SupervisorClient("http://127.0.0.1:9", "a", "host", "boot")
    supervisor.started(0, "x")
    supervisor.done(0, "finished")
    supervisor.close(flush=0.1)
    assert time.monotonic() - begun < scaled(5.0)
    assert "away" in repr(supervisor)


def sidecar(address: str, name: str = "eval") -> tuple[SupervisorClient, list[tuple[int, str]]]:
    """Its client, and the orders to stop it has got."""
    made = SupervisorClient(address, "", "host", "boot", sidecar=name)
    stops: list[tuple[int, str]] = []
    made.on_stop(lambda code, text: stops.append((code, text)))
    return made, stops


def test_a_sidecar_is_known_by_name_and_is_no_group() -> None:
    with lighthouse() as lh:
        made, stops = sidecar(lh.address())
        wait_for(lambda: "eval" in lh.status()["sidecars"], what="the sidecar to be known")
        assert lh.status()["announced"] == []
        wait_for(lambda: made.away() == 0.0, what="the lighthouse's answer to be heard")
        made.started(0, "life")
        made.exited(0, "life", 1, "exit code 1")
        made.done(1, "it gave up")
        made.close(scaled(10))
        assert lh.status()["sidecars"]["eval"] == {"state": "failed", "host": "host", "trouble": "it gave up"}
        assert stops == []


def test_a_sidecar_of_a_group_is_refused() -> None:
    with lighthouse() as lh:
        made = SupervisorClient(lh.address(), "a", "host", "boot", sidecar="eval")
        stops: list[tuple[int, str]] = []
        made.on_stop(lambda code, text: stops.append((code, text)))
        wait_for(lambda: stops, what="the refusal")
        assert "not for both" in stops[0][1]
        made.close()


def test_away_counts_from_the_last_touch() -> None:
    with lighthouse() as lh:
        made, _ = sidecar(lh.address())
        wait_for(lambda: made.away() == 0.0, what="the session")
    wait_for(lambda: made.away() > 0.0, what="the end of the session to be seen")
    made.close(flush=0.1)
