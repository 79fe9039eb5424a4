"""Programs beside the groups: events in, effects compared."""

from __future__ import annotations

from functools import partial

from torchft_x.core.job.sidecars import REMEMBERED, Sidecars
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import SupervisorFinished, SupervisorGone, SupervisorHere, TellStop

here, gone = partial(SupervisorHere, sidecar=True), partial(SupervisorGone, sidecar=True)
finished = partial(SupervisorFinished, sidecar=True)


def stopped(name: str) -> TellStop:
    return TellStop(name, 0, "over", sidecar=True)


def present(*names: str) -> Sidecars:
    machine = Sidecars(gone_grace=3.0)
    for name in names:
        assert machine.handle(here(name, "h"), 0.0) == []
    return machine


def test_the_end_is_told_to_those_here_and_to_whoever_comes_later() -> None:
    machine = present("b", "a", "c")
    machine.handle(gone("c"), 1.0)
    assert machine.end("over") == [stopped("a"), stopped("b")]
    assert machine.handle(here("c", "h"), 2.0) == [stopped("c")]
    machine.handle(gone("a"), 10.0)
    assert machine.handle(Tick(), 60.0) == []  # a silent end is no trouble any more


def test_one_that_gives_up_is_said_with_its_reason_and_that_the_job_goes_on() -> None:
    machine = present("eval")
    (note,) = machine.handle(finished("eval", 1, "3 quick exits in a row."), 1.0)
    assert note == Note("error", "The sidecar eval gave up on h: 3 quick exits in a row. The job goes on.")
    assert machine.status() == {"eval": {"state": "failed", "host": "h", "trouble": "3 quick exits in a row."}}
    machine.handle(gone("eval"), 1.1)
    assert machine.handle(Tick(), 60.0) == []  # it has said why


def test_one_that_ends_by_itself_is_said_and_one_that_was_told_to_is_not() -> None:
    machine = present("a", "b")
    (note,) = machine.handle(finished("a", 0, ""), 1.0)
    assert note.event == "sidecar"
    assert machine.handle(finished("b", 0, "the job is over"), 1.0) == []
    assert [s["state"] for s in machine.status().values()] == ["finished", "finished"]


def test_a_silent_end_is_said_once_after_the_grace() -> None:
    machine = present("eval")
    machine.handle(gone("eval"), 10.0)
    assert machine.handle(Tick(), 12.9) == []
    (note,) = machine.handle(Tick(), 13.0)
    assert "gone without a word" in note.text
    assert machine.handle(Tick(), 14.0) == []
    assert machine.status()["eval"]["state"] == "away"


def test_a_reconnect_is_no_silent_end() -> None:
    machine = present("eval")
    machine.handle(here("eval", "h", stream=9), 1.0)  # before the old stream is seen to end
    machine.handle(gone("eval"), 1.1)
    assert machine.handle(Tick(), 60.0) == []
    machine.handle(gone("eval", stream=9), 61.0)
    machine.handle(here("eval", "h2"), 62.0)
    assert machine.handle(Tick(), 90.0) == []
    assert machine.status()["eval"] == {"state": "running", "host": "h2", "trouble": ""}


def test_the_one_that_went_first_is_forgotten_and_nobody_before_there_are_too_many() -> None:
    machine = present("here")
    for k in range(REMEMBERED - 1):
        machine.handle(here(f"c{k}", "h"), 1.0)
        machine.handle(gone(f"c{k}"), 1.0)
    assert len(machine.status()) == REMEMBERED
    machine.handle(here("one more", "h"), 1.0)
    assert len(machine.status()) == REMEMBERED
    assert "c0" not in machine.status()
    assert "c1" in machine.status()
    names = [f"c{k}" for k in range(REMEMBERED + 2)]
    assert present(*names).present == set(names)  # those that are here are never forgotten


def test_one_that_is_here_again_is_watched_as_before() -> None:
    machine = present("eval")
    machine.handle(gone("eval"), 10.0)
    assert len(machine.handle(Tick(), 13.0)) == 1
    machine.handle(here("eval", "h"), 14.0)
    machine.handle(gone("eval"), 15.0)
    assert len(machine.handle(Tick(), 18.0)) == 1  # its second silent end
    machine.handle(here("eval", "h"), 20.0)
    machine.handle(finished("eval", 1, "it failed."), 21.0)
    machine.handle(gone("eval"), 21.5)
    machine.handle(here("eval", "h"), 22.0)  # started again
    machine.handle(gone("eval"), 23.0)
    assert len(machine.handle(Tick(), 26.0)) == 1
