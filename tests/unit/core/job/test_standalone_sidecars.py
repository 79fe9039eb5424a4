"""Sidecars at a stand-alone lighthouse: when is a job over that nobody has announced?"""

from __future__ import annotations

from torchft_x.core.job.standalone_sidecars import DONE, MISSING, StandaloneSidecars
from torchft_x.core.messages.common import Tick
from torchft_x.core.messages.job import (
    AttemptStarted,
    QuorumIssued,
    SidecarGone,
    SidecarHere,
    StopSidecar,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)


def job(*groups: str) -> StandaloneSidecars:
    """A sidecar `eval` and these groups are here at time 0."""
    visits = StandaloneSidecars(grace=3.0, missing=300.0)
    assert visits.handle(SidecarHere("eval", "h"), 0.0) == []
    for group in groups:
        assert visits.handle(SupervisorHere(group, "h"), 0.0) == []
    return visits


def leave(visits: StandaloneSidecars, group: str, now: float, *, done: bool = True) -> None:
    if done:
        assert visits.handle(SupervisorFinished(group, 0, ""), now) == []
    assert visits.handle(SupervisorGone(group), now) == []


def test_a_group_that_went_without_a_word_may_come_back() -> None:
    visits = job("0")
    leave(visits, "0", 10.0, done=False)
    assert visits.handle(Tick(), 200.0) == []
    visits.handle(SupervisorHere("0", "h"), 201.0)
    assert visits.handle(Tick(), 2000.0) == []  # it may stay for as long as it likes
    leave(visits, "0", 2002.0)
    assert visits.handle(Tick(), 2006.0) == [StopSidecar("eval", DONE)]


def test_a_reconnect_of_a_group_is_no_end_and_its_attempts_and_quorums_do_not_matter() -> None:
    visits = job("0")
    assert visits.handle(AttemptStarted("0", 0, "L"), 1.0) == []
    assert visits.handle(QuorumIssued(frozenset({"L"})), 1.0) == []
    visits.handle(SupervisorHere("0", "h", stream=9), 5.0)
    visits.handle(SupervisorGone("0"), 5.1)
    assert visits.handle(Tick(), 1000.0) == []


def test_a_group_of_which_one_node_is_done_is_here_until_the_other_goes() -> None:
    visits = job()
    for node in range(2):
        visits.handle(SupervisorHere("0", "h", node, 2, stream=node), 0.0)
    visits.handle(SupervisorFinished("0", 0, ""), 10.0)
    visits.handle(SupervisorGone("0", stream=0), 10.0)
    assert visits.handle(Tick(), 1000.0) == []
    visits.handle(SupervisorGone("0", 1, stream=1), 1000.0)
    assert visits.handle(Tick(), 1003.0) == [StopSidecar("eval", DONE)]


def test_a_sidecar_that_has_left_is_not_told() -> None:
    visits = job("0")
    visits.handle(SidecarGone("eval"), 5.0)
    leave(visits, "0", 6.0)
    effects = visits.handle(Tick(), 9.0)
    assert not any(isinstance(e, StopSidecar) for e in effects)


def test_a_group_that_begins_anew_has_not_said_that_it_is_done() -> None:
    visits = job("0")
    visits.handle(SupervisorFinished("0", 0, ""), 10.0)
    # Its next supervisor is quicker than the end of that stream.
    visits.handle(SupervisorHere("0", "h", stream=9), 10.1)
    visits.handle(SupervisorGone("0"), 10.2)
    visits.handle(SupervisorGone("0", stream=9), 20.0)
    assert visits.handle(Tick(), 200.0) == []
    assert visits.handle(Tick(), 320.0) == [StopSidecar("eval", MISSING)]


def test_one_job_after_the_other() -> None:
    visits = job("0")
    leave(visits, "0", 10.0, done=False)
    assert visits.handle(Tick(), 309.9) == []
    assert visits.handle(Tick(), 310.0) == [StopSidecar("eval", MISSING)]
    visits.handle(SidecarGone("eval"), 311.0)
    visits.handle(SupervisorHere("1", "h"), 400.0)
    visits.handle(SidecarHere("other", "h"), 400.0)
    leave(visits, "1", 410.0)
    visits.handle(SidecarHere("eval", "h"), 411.0)  # it waits for a third job
    assert visits.handle(Tick(), 413.0) == [StopSidecar("other", DONE)]  # nobody of this job was silent
