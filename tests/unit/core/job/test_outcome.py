"""The roster machine: events in, effects compared. No clock, no network."""

from __future__ import annotations

import pytest

from torchft_x.core.job.outcome import DESERTED, FINISHED, JobConfig, JobOutcome
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import (
    AttemptExited,
    AttemptStarted,
    GroupsChanged,
    QuorumIssued,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
    TellStop,
    Verdict,
)
from torchft_x.errors import ConfigError

ALL_WELL = Verdict(0, "All 2 groups finished.")


def training(groups: int = 3, **options: object) -> JobOutcome:
    """A job at time 0 whose groups 0.. all train in one quorum; attempts are called L0, L1, ..."""
    names = tuple(str(i) for i in range(groups))
    roster = JobOutcome(JobConfig(groups=names, **options))  # type: ignore[arg-type]
    for name in names:
        assert roster.handle(SupervisorHere(name, f"host{name}"), 0.0) == []
        assert roster.handle(AttemptStarted(name, 0, f"L{name}"), 0.0) == []
    assert roster.handle(QuorumIssued(frozenset(f"L{n}" for n in names)), 1.0) == []
    return roster


def verdicts(effects: list) -> list[Verdict]:
    return [e for e in effects if isinstance(e, Verdict)]


def texts(effects: list) -> list[str]:
    return [e.text for e in effects if isinstance(e, Note)]


def stops(effects: list) -> list[TellStop]:
    return [e for e in effects if isinstance(e, TellStop)]


def test_the_same_trouble_is_told_once() -> None:
    roster = JobOutcome(JobConfig(groups=("0", "1", "2")))
    for g in ("0", "1", "2"):
        roster.handle(SupervisorHere(g, "h"), 0.0)
    roster.handle(SupervisorFinished("0", 1, "NameError."), 1.0)
    roster.handle(SupervisorFinished("1", 1, "other"), 1.0)
    (verdict,) = roster.handle(SupervisorFinished("2", 1, "NameError."), 1.0)
    assert verdict.sentence.endswith("group 0 and group 2 gave up on h: NameError; group 1 gave up on h: other.")


def test_too_few_groups_left_stops_the_rest_at_once() -> None:
    roster = training(3, min_replicas=3)
    effects = roster.handle(SupervisorFinished("1", 1, "crash loop"), 11.0)
    (verdict,) = verdicts(effects)
    assert verdict.code == 1
    assert "only 2 of 3" in verdict.sentence
    assert "min_replicas is 3" in verdict.sentence
    assert effects == [TellStop("0", 1, verdict.sentence), TellStop("2", 1, verdict.sentence), verdict]  # stops first
    assert roster.handle(SupervisorFinished("0", 0, ""), 12.0) == []
    assert roster.handle(AttemptExited("2", 0, "L2", 1, "told to stop"), 12.0) == []


@pytest.mark.parametrize("first", ["0", "1"])
def test_a_group_that_fails_after_it_has_trained_to_the_end_has_not_finished(first: str) -> None:
    """It was to save the model, perhaps; another one has ended well, before that or after."""
    roster = training(2)
    failed = AttemptExited("1", 0, "L1", 1, "worker 0 exited with code 1")
    finished = SupervisorFinished("0", 0, "")
    (stop,) = [
        e for event in ((finished, failed) if first == "0" else (failed, finished)) for e in roster.handle(event, 11.0)
    ]
    assert stop == TellStop(
        "1",
        1,
        "worker 0 exited with code 1, after it had trained to the end with the others (was it saving the model?)",
    )
    (verdict,) = roster.handle(SupervisorFinished("1", 1, stop.sentence), 13.0)
    assert verdict == Verdict(1, f"1 of 2 groups finished, but group 1 gave up on host1: {stop.sentence}.")


@pytest.mark.parametrize("newer", [False, True])
def test_a_group_that_was_not_in_the_last_quorum_is_stopped_when_the_job_is_finished(newer: bool) -> None:
    roster = training(2)
    roster.handle(AttemptExited("1", 0, "L1", 1, "x"), 5.0)
    roster.handle(QuorumIssued(frozenset({"L0"})), 6.0)
    roster.handle(AttemptStarted("1", 1, "L1b"), 7.0)
    if newer:  # group 0 has left after its last step, but its process has not ended yet
        roster.handle(QuorumIssued(frozenset({"L1b"})), 9.0)
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == [TellStop("1", 0, FINISHED)]


def test_a_supervisor_that_reconnects_hears_that_it_must_stop_once_more_if_it_was_told() -> None:
    roster = training(2)
    roster.handle(AttemptExited("1", 0, "L1", -9, "x"), 9.0)
    roster.handle(SupervisorGone("1"), 9.0)
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == []
    for now in (11.0, 12.0):
        assert roster.handle(SupervisorHere("1", "host1"), now) == [TellStop("1", 0, FINISHED)]
        roster.handle(SupervisorGone("1"), now + 0.1)


def test_a_group_that_repeats_its_last_step_alone_goes_on() -> None:
    roster = training(2)
    roster.handle(QuorumIssued(frozenset({"L1"})), 9.0)  # group 0 committed the last step, group 1 dropped it
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == []


def test_a_supervisor_that_comes_after_the_verdict_is_told_it() -> None:
    roster = training(2, min_replicas=2)
    roster.handle(SupervisorGone("1"), 10.0)
    effects = roster.handle(Tick(), 20.0)
    (verdict,) = verdicts(effects)
    assert stops(effects) == [TellStop("0", 1, verdict.sentence)]
    assert roster.handle(SupervisorHere("1", "host1"), 21.0) == [TellStop("1", 1, verdict.sentence)]


def test_groups_without_a_manager_each_do_their_own_work() -> None:
    roster = JobOutcome(JobConfig(groups=("0", "1")))
    for g in ("0", "1"):
        roster.handle(SupervisorHere(g, "h"), 0.0)
        roster.handle(AttemptStarted(g, 0, f"L{g}"), 0.0)
    assert roster.handle(SupervisorFinished("0", 0, ""), 1.0) == []  # no quorum was ever issued: nothing to be late for
    assert roster.handle(AttemptExited("1", 0, "L1", 1, "x"), 2.0) == []


def test_a_supervisor_that_never_comes_is_lost() -> None:
    roster = JobOutcome(JobConfig(groups=("0", "a"), arrive_timeout=30.0))
    roster.handle(SupervisorHere("a", "h", 0, 2), 5.0)
    assert roster.status()["a"]["state"] == "awaited"
    assert roster.handle(Tick(), 34.9) == []
    assert texts(roster.handle(Tick(), 35.0)) == [  # counted from the first event
        "Group 0 is lost: its supervisor has not come within 30 s.",
        "Group a is lost: its supervisor of node 1 has not come within 30 s.",
    ]
    roster = training(2, arrive_timeout=300.0)
    assert roster.handle(GroupsChanged(("0", "1", "2")), 5000.0) == []  # a group that is added has as long to come
    assert roster.handle(Tick(), 5299.0) == []
    assert texts(roster.handle(Tick(), 5300.0)) == ["Group 2 is lost: its supervisor has not come within 300 s."]


def test_finishing_is_final_and_a_stranger_is_sent_away() -> None:
    roster = training(2)
    roster.handle(SupervisorFinished("0", 1, "gave up"), 10.0)
    roster.handle(SupervisorFinished("0", 0, ""), 11.0)
    (stop,) = roster.handle(SupervisorHere("0", "host0"), 12.0)
    assert stop.code == 1
    (stop,) = roster.handle(SupervisorHere("7", "h"), 12.0)
    assert (stop.group, stop.code) == ("7", 1)
    assert "0, 1" in stop.sentence
    assert roster.handle(SupervisorFinished("7", 1, ""), 13.0) == []


def test_a_sidecar_ends_with_the_verdict_and_does_not_count() -> None:
    roster = training(2)
    assert roster.handle(SupervisorHere("eval", "h", sidecar=True), 2.0) == []
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == []
    effects = roster.handle(SupervisorFinished("1", 0, ""), 10.0)
    sentence = ALL_WELL.sentence
    assert effects == [TellStop("eval", 0, sentence, sidecar=True), ALL_WELL]  # the stop comes before the verdict
    late = SupervisorHere("late", "h", sidecar=True)
    assert roster.handle(late, 11.0) == [TellStop("late", 0, sentence, sidecar=True)]


def test_the_end_of_an_attempt_that_is_no_more_the_newest_says_nothing() -> None:
    roster = training(2)
    roster.handle(AttemptStarted("1", 1, "L1b"), 5.0)
    roster.handle(QuorumIssued(frozenset({"L0", "L1b"})), 6.0)
    assert roster.handle(AttemptExited("1", 0, "L1", -9, "killed by SIGKILL"), 7.0) == []
    assert roster.status()["1"]["state"] == "running"
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == []  # group 1 trains with it and finishes by itself


def test_a_group_that_finishes_without_ever_having_an_attempt_stops_nobody() -> None:
    roster = JobOutcome(JobConfig(groups=("0", "1")))
    roster.handle(SupervisorHere("0", "host0"), 0.0)
    roster.handle(SupervisorHere("1", "host1"), 0.0)
    assert roster.status()["0"] == {"state": "starting", "host": "host0", "attempt": 0, "trouble": ""}
    assert roster.handle(SupervisorFinished("0", 0, ""), 1.0) == []


def test_a_group_that_was_told_to_stop_has_not_done_the_jobs_work() -> None:
    """0 and 1 train; 2 and 3 were started again and met without them."""
    roster = training(4)
    for n in ("2", "3"):
        roster.handle(AttemptStarted(n, 1, f"L{n}b"), 5.0)
    roster.handle(QuorumIssued(frozenset({"L0", "L1"})), 6.0)
    roster.handle(QuorumIssued(frozenset({"L2b", "L3b"})), 6.0)
    roster.handle(SupervisorGone("3"), 9.0)
    assert roster.handle(SupervisorFinished("0", 0, ""), 10.0) == [TellStop("2", 0, FINISHED)]
    assert roster.handle(SupervisorFinished("2", 0, FINISHED), 10.5) == []
    assert roster.handle(SupervisorHere("3", "host3"), 11.0) == [TellStop("3", 0, FINISHED)]


def test_a_group_that_comes_back_after_the_verdict_hears_its_own_end() -> None:
    roster = training(2)
    roster.handle(SupervisorFinished("0", 0, ""), 10.0)
    roster.handle(SupervisorFinished("1", 3, "crash loop"), 11.0)
    assert roster.verdict is not None
    (stop,) = roster.handle(SupervisorHere("0", "host0"), 12.0)
    assert stop == TellStop("0", 0, "group 0 has finished already, with code 0")


def test_status_tells_each_group() -> None:
    roster = training(3)
    roster.handle(SupervisorFinished("0", 0, ""), 10.0)
    roster.handle(SupervisorGone("1"), 10.0)
    roster.handle(Tick(), 20.0)
    status = roster.status()
    assert [s["state"] for s in status.values()] == ["finished", "lost", "running"]
    assert "host1" in str(status["1"]["trouble"])
    assert "1: lost" in repr(roster)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"groups": ()}, "at least one group"),
        ({"groups": ("0", "0")}, "groups"),
        ({"groups": ("0",), "min_replicas": 0}, "min_replicas"),
        ({"groups": ("0",), "min_replicas": 2}, "min_replicas"),
        ({"groups": ("0",), "gone_grace": 0.0}, "gone_grace"),
        ({"groups": ("0",), "arrive_timeout": float("nan")}, "arrive_timeout"),
    ],
)
def test_config_errors_name_the_field(options: dict, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        JobConfig(**options)


def test_a_grace_below_a_second_is_one() -> None:
    roster = training(2, gone_grace=0.5)
    roster.handle(SupervisorGone("1"), 10.0)
    assert roster.handle(Tick(), 10.4) == []
    assert texts(roster.handle(Tick(), 10.5)) == ["Group 1 is lost: its supervisor on host1 is gone without a word."]


# --- groups over several nodes -----------------------------------------------------------------------------------------


def two_nodes(**options: object) -> JobOutcome:
    """Group a is on two nodes, group b on one; both train in one quorum."""
    roster = JobOutcome(JobConfig(groups=("a", "b"), **options))  # type: ignore[arg-type]
    for event in (
        SupervisorHere("a", "host0", 0, 2),
        SupervisorHere("a", "host1", 1, 2),
        SupervisorHere("b", "host2"),
        AttemptStarted("a", 0, "La"),
        AttemptStarted("b", 0, "Lb"),
        QuorumIssued(frozenset({"La", "Lb"})),
    ):
        assert roster.handle(event, 0.0) == []
    return roster


def test_a_group_is_lost_when_the_supervisor_of_any_node_is() -> None:
    roster = two_nodes()
    roster.handle(SupervisorGone("a", 1), 10.0)
    assert texts(roster.handle(Tick(), 13.0)) == [
        "Group a is lost: its supervisor of node 1 on host1 is gone without a word."
    ]
    assert roster.status()["a"]["state"] == "lost"
    effects = roster.handle(SupervisorFinished("b", 0, ""), 20.0)
    (verdict,) = verdicts(effects)
    assert verdict.code == 1
    assert [s.group for s in stops(effects)] == ["a"]  # its other node is still here, and must go


def test_a_lost_group_is_back_when_its_last_node_is_although_another_one_is_done() -> None:
    roster = two_nodes()
    roster.handle(SupervisorGone("a", 0), 10.0)
    roster.handle(SupervisorGone("a", 1), 10.0)
    roster.handle(Tick(), 13.0)
    assert roster.handle(SupervisorHere("a", "host7", 0, 2), 14.0) == []
    (note,) = roster.handle(SupervisorHere("a", "host8", 1, 2), 15.0)
    assert note.event == "joined"
    assert roster.status()["a"]["state"] == "running"
    roster.handle(SupervisorFinished("a", 0, "", 0), 16.0)
    roster.handle(SupervisorGone("a", 0), 16.0)
    roster.handle(SupervisorGone("a", 1), 20.0)
    assert roster.handle(Tick(), 22.9) == []  # within the grace, and node 0 is done
    assert texts(roster.handle(Tick(), 23.0)) == [
        "Group a is lost: its supervisor of node 1 on host8 is gone without a word."
    ]
    (note,) = roster.handle(SupervisorHere("a", "host9", 1, 2), 24.0)
    assert note.event == "joined"


@pytest.mark.parametrize(("code", "state"), [(-9, "running"), (143, "running"), (1, "failed")])
def test_a_group_that_is_killed_at_the_end_has_done_its_part_and_one_that_gave_up_has_not(
    code: int, state: str
) -> None:
    roster = training(2)
    roster.handle(AttemptExited("1", 0, "L1", code, "from outside"), 5.0)
    if state == "running":
        assert roster.handle(SupervisorFinished("0", 0, ""), 11.0) == [TellStop("1", 0, FINISHED)]
    else:
        roster.handle(AttemptStarted("1", 1, "L1b"), 6.0)
        assert roster.handle(SupervisorFinished("0", 1, "crash loop"), 10.0) == []
        assert roster.status()["0"]["state"] == "failed"


def test_what_a_supervisor_has_said_itself_counts_more_and_a_last_report_that_did_not_arrive_is_made_up_for() -> None:
    roster = training(2, kept=True)
    roster.handle(SupervisorFinished("1", 1, "its own reason"), 10.0)
    roster.handle(GroupsChanged(("0", "1"), (SupervisorFinished("1", 1, "ended with code 1"),)), 11.0)
    assert "its own reason" in str(roster.status()["1"]["trouble"])
    roster = training(2, kept=True)
    roster.handle(SupervisorFinished("0", 0, ""), 10.0)
    ended = (SupervisorFinished("0", 0, ""), SupervisorFinished("1", 0, ""))
    assert roster.handle(GroupsChanged(("0", "1"), ended), 11.0) == [ALL_WELL]


def test_a_group_has_finished_when_all_its_nodes_have() -> None:
    roster = two_nodes()
    roster.handle(SupervisorFinished("b", 0, ""), 10.0)
    assert roster.handle(AttemptExited("a", 0, "La", 0, ""), 10.0) == []  # about to be done: it isn't told to stop
    assert roster.handle(SupervisorFinished("a", 0, "", 1), 10.0) == []
    roster.handle(SupervisorGone("a", 1), 10.0)
    assert roster.handle(Tick(), 20.0) == []  # a node that is done may go
    assert roster.handle(SupervisorFinished("a", 0, "", 0), 21.0) == [ALL_WELL]


def test_one_node_that_gives_up_speaks_for_the_group() -> None:
    roster = two_nodes()
    roster.handle(SupervisorFinished("a", 1, "too often", 0), 10.0)
    roster.handle(SupervisorFinished("a", 1, "node 0 stopped: too often", 1), 10.1)
    (verdict,) = verdicts(roster.handle(SupervisorFinished("b", 0, ""), 20.0))
    assert verdict.sentence == "1 of 2 groups finished, but group a gave up on host0: too often."


# --- one of several lighthouses ------------------------------------------------------------------------------------------


def test_one_that_is_cut_off_takes_nobody_for_lost_and_lets_another_one_serve() -> None:
    roster = training(2, several=True)
    for name in "01":
        roster.handle(SupervisorGone(name), 10.0)
    assert roster.handle(Tick(), 24.9) == []
    (verdict,) = roster.handle(Tick(), 25.0)
    assert verdict.code == DESERTED
    roster = training(2, several=True)
    for name in "01":
        roster.handle(SupervisorGone(name), 10.0)
    assert roster.handle(SupervisorHere("0", "host0"), 24.0) == []  # in time
    assert roster.handle(Tick(), 26.9) == [], "the other one may be as quick"
    (note,) = roster.handle(Tick(), 27.0)
    assert "group 1 is lost" in note.text.lower()


def test_one_to_which_some_still_come_knows_who_is_lost() -> None:
    roster = training(3, several=True, min_replicas=3)
    roster.handle(SupervisorGone("1"), 10.0)
    (note, *_, verdict) = roster.handle(Tick(), 13.0)
    assert isinstance(note, Note)
    assert verdict.code == 1


def test_one_that_hears_of_the_end_knows_who_is_lost() -> None:
    roster = training(2, several=True)
    roster.handle(SupervisorGone("1"), 10.0)
    assert verdicts(roster.handle(SupervisorFinished("0", 0, ""), 50.0)) == [
        Verdict(1, "1 of 2 groups finished, but group 1 is lost: its supervisor on host1 is gone without a word.")
    ]


def test_one_to_which_nobody_ever_comes_knows_that_the_job_has_failed() -> None:
    roster = JobOutcome(JobConfig(groups=("0",), several=True, arrive_timeout=30.0))
    assert roster.handle(Tick(), 100.0) == []
    assert roster.handle(Tick(), 129.9) == []
    assert roster.handle(Tick(), 130.0)[-1].code == 1


# --- somebody keeps the supervisors running -----------------------------------------------------------------------------


def test_a_kept_supervisor_is_not_lost_by_its_absence() -> None:
    roster = training(2, kept=True)
    roster.handle(SupervisorGone("1"), 10.0)
    assert roster.handle(Tick(), 10_000.0) == []
    assert JobOutcome(JobConfig(groups=("0",), kept=True)).handle(Tick(), 10_000.0) == []  # nor is one that never came
    assert roster.handle(SupervisorFinished("0", 0, ""), 10_001.0) == []
    assert roster.handle(SupervisorHere("1", "host1"), 10_002.0) == []
    assert stops(roster.handle(AttemptStarted("1", 1, "again"), 10_002.1)) == [TellStop("1", 0, FINISHED)]
    assert roster.handle(SupervisorFinished("1", 0, FINISHED), 10_003.0) == [ALL_WELL]


def test_its_keepers_word_that_it_has_ended_for_good_counts() -> None:
    roster = training(3, kept=True, min_replicas=2)
    given_up = SupervisorFinished("1", 1, "its supervisor has been killed 11 times")
    assert roster.handle(GroupsChanged(("0", "1", "2"), (given_up,)), 10.0) == []
    assert roster.status()["1"]["state"] == "lost"
    (verdict,) = verdicts(roster.handle(SupervisorFinished("2", 1, "a typo"), 11.0))
    assert verdict.code == 1
    assert "group 1 is lost: its supervisor has been killed 11 times" in verdict.sentence


def test_of_a_group_over_nodes_each_node_ends_by_itself() -> None:
    roster = JobOutcome(JobConfig(groups=("0",), kept=True))
    roster.handle(SupervisorHere("0", "a", 0, 2), 0.0)
    roster.handle(GroupsChanged(("0",), (SupervisorFinished("0", 0, "", 1),)), 1.0)
    assert roster.status()["0"]["state"] != "finished"
    both = (SupervisorFinished("0", 0, "", 1), SupervisorFinished("0", 0, "", 0))
    assert verdicts(roster.handle(GroupsChanged(("0",), both), 2.0))[0].code == 0


def test_a_group_that_is_added_is_waited_for() -> None:
    roster = training(2, kept=True)
    assert roster.handle(GroupsChanged(("0", "1", "2")), 10.0) == []
    roster.handle(SupervisorFinished("0", 0, ""), 11.0)
    assert roster.handle(SupervisorFinished("1", 0, ""), 11.0) == []
    assert stops(roster.handle(SupervisorHere("2", "host2"), 12.0)) == [TellStop("2", 0, FINISHED)]
    assert roster.handle(SupervisorFinished("2", 0, FINISHED), 12.1) == [Verdict(0, "All 3 groups finished.")]


def test_a_group_that_is_taken_away_is_forgotten() -> None:
    roster = training(3, kept=True)
    assert roster.handle(GroupsChanged(("0", "1")), 10.0) == []
    assert roster.handle(AttemptExited("2", 0, "L2", 143, "ended by SIGTERM"), 10.5) == []
    assert roster.handle(SupervisorGone("2"), 11.0) == []
    (stop,) = roster.handle(SupervisorHere("2", "host2"), 12.0)  # it should not have come again
    assert "groups are 0, 1" in stop.sentence
    roster.handle(GroupsChanged(("0",)), 13.0)
    roster.handle(GroupsChanged(("0", "1")), 14.0)  # it begins anew
    assert roster.handle(SupervisorHere("1", "host1"), 15.0) == []
    assert roster.status()["1"]["state"] == "starting"
    roster.handle(SupervisorFinished("0", 0, ""), 20.0)
    assert roster.handle(SupervisorFinished("1", 0, ""), 20.0) == [ALL_WELL]


def test_a_supervisor_that_reconnects_in_time_is_not_lost_nor_is_one_whose_replaced_stream_ends() -> None:
    roster = training(2)
    roster.handle(SupervisorGone("1"), 10.0)
    assert roster.handle(SupervisorHere("1", "host1"), 12.0) == []
    roster.handle(SupervisorHere("1", "host1", stream=9), 13.0)  # reconnects before the old stream is seen to end
    roster.handle(SupervisorGone("1"), 13.5)
    assert roster.handle(Tick(), 60.0) == []


def test_a_node_that_was_there_before_its_group_was_added_again_may_leave() -> None:
    roster = JobOutcome(JobConfig(groups=("0", "1")))
    for node in (0, 1):
        roster.handle(SupervisorHere("1", f"h{node}", node, 2, stream=node), 0.0)
    for groups in (("0",), ("0", "1")):
        roster.handle(GroupsChanged(groups), 1.0)
    assert roster.known("1", 1) is None
    assert roster.handle(SupervisorGone("1", 1, stream=1), 2.0) == []
    assert roster.handle(SupervisorFinished("1", 0, "", 1), 3.0) == []
