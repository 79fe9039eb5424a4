"""Supervisors of groups over several nodes and the lighthouse, over real streams."""

from __future__ import annotations

import concurrent.futures

import grpc

from tests.unit.rpc.support import MEETING, Supervisor, attempt_id, close, is_lost, known, lighthouse
from tests.unit.rpc.support import group as group_server
from tests.util import wait_for
from torchft_x.core.job.multi_node import GangCoordinator
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.supervisor_client import REFUSED_CODE


def both(server: LighthouseServer) -> tuple[Supervisor, Supervisor]:
    return Supervisor(server.address(), 0), Supervisor(server.address(), 1)


def gangs(server: LighthouseServer) -> GangCoordinator:
    """Return the machine that starts and ends attempts. Its words name what a group waits for."""
    return server._shell._supervisors._gangs


def test_an_attempt_begins_and_ends_together_and_its_end_is_proof_when_all_have_confirmed() -> None:
    with lighthouse() as server:
        zero, one = both(server)
        zero.ready()
        one.ready(3)
        attempt, token, meeting = zero.next("begun")
        assert (attempt, meeting) == (3, MEETING)
        assert one.next("begun") == (attempt, token, meeting)
        with group_server("a:1", server.address(), attempt_id=attempt_id(3, token)):
            wait_for(lambda: known(server), what="the member")
            one.ended(-9)
            assert zero.next("overs") == one.next("overs") == (token, -9, "killed")
            assert known(server) == ["a:1"]
            assert not is_lost(server, "a:1")
            zero.ended(-9, "told")
            wait_for(
                lambda: is_lost(server, "a:1") or not known(server), what="the proof"
            )  # a tick later it is forgotten
        one.ready(4)
        zero.ready(4)
        assert zero.next("begun", 2)[0] == 4
        close(zero, one)


def test_reports_made_while_the_lighthouse_was_away_are_said_again() -> None:
    with lighthouse() as first:
        bind = first.address().removeprefix("http://")
        zero, one = both(first)
        zero.ready()
        one.ready()
        _, token, _ = zero.next("begun")
        one.next("begun")
    one.ended(7, "failed meanwhile")
    with lighthouse(bind=bind):
        assert zero.next("overs") == (token, 7, "failed meanwhile")
        zero.ended(-9)
        zero.ready(1)
        one.next("overs")
        one.ready(1)
        assert zero.next("begun", 2) == one.next("begun", 2)
        assert len(zero.begun) == len(one.begun) == 2
        close(zero, one)


def test_one_that_gives_up_stops_the_other() -> None:
    with lighthouse() as server:
        zero, one = both(server)
        here = "group a waits for nodes 0 and 1 to be ready"
        wait_for(lambda: here in repr(gangs(server)), what="both nodes")
        zero.client.done(1, "no restarts left")
        assert one.next("stops") == (1, "node 0 stopped: no restarts left")
        assert zero.stops == []
        close(zero, one)


def test_a_node_with_a_wrong_number_is_refused() -> None:
    with lighthouse() as server:
        zero = Supervisor(server.address(), 0)
        wait_for(lambda: "group a waits for node 1 to come" in repr(gangs(server)), what="node 0")
        wrong = Supervisor(server.address(), 1, nodes=3)
        assert wrong.next("stops")[0] == REFUSED_CODE
        close(zero, wrong)


def test_a_report_of_the_other_kind_of_group_is_refused() -> None:
    with lighthouse() as server:
        zero = Supervisor(server.address(), 0, nodes=1)
        zero.client.ready(0, "")
        assert "started, exited, done" in zero.next("stops")[1]
        close(zero)


def test_a_lighthouse_that_knows_no_supervisors_is_one_sentence() -> None:
    """The peer's, for instance."""
    other = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        zero = Supervisor(f"http://127.0.0.1:{port}", 0)
        code, sentence = zero.next("stops")
        assert code == REFUSED_CODE
        assert "torchft's own? Use torchft_x's." in sentence
        close(zero)
    finally:
        other.stop(None)
