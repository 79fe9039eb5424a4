"""What is done about a job's parts, by rows as a real Slurm has told them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

import pytest

from tests.unit.launch.slurm.rules.recorded import as_24_11
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part
from torchft_x.launch.slurm.rules.queue import Row, comment, parse_rows
from torchft_x.launch.slurm.rules.restart import JobRestarts, Patience
from torchft_x.launch.slurm.rules.values import (
    Action,
    Cancel,
    LiftExclusions,
    LighthouseStatus,
    RecordSubmission,
    ReportLost,
    Reschedule,
    Resubmit,
    SkipBeginTime,
    Supervisor,
    read_status,
)
from torchft_x.launch.slurm.status import why_unheard
from torchft_x.timing import TIMING

NOTE = comment("app", "t1", "/runs/7")
SILENT = 60.0  # "not heard": no stream at all

# in the shape of 22.05.8, as it was recorded (recorded.py); each is read in that of 24.11, too
RUNNING = "31_{n}|31|{restarts}|RUNNING|0|n{node}|2026-11-25T11:00:00|None|app-trainer|" + NOTE + "|"
BEGIN_TIME = "31_1|31|1|PENDING|0||2026-11-25T11:04:41|BeginTime|app-trainer|" + NOTE + "|"
RESOURCES = "31_1|31|1|PENDING|0||N/A|Resources|app-trainer|" + NOTE + "|"
HELD = "31_1|31|1|PENDING|0||N/A|launch_failed_requeued_held|app-trainer|" + NOTE + "|"
ADMIN_HELD = "31_1|31|1|PENDING|0||N/A|JobHeldAdmin|app-trainer|" + NOTE + "|"
KILLED = "31_1|31|0|FAILED|35072|n2|2026-11-25T11:00:00|NonZeroExitCode|app-trainer|" + NOTE + "|"
GAVE_UP = "31_1|31|0|FAILED|256|n2|2026-11-25T11:00:00|NonZeroExitCode|app-trainer|" + NOTE + "|"
MISTAKE = "31_1|31|0|FAILED|512|n2|2026-11-25T11:00:00|NonZeroExitCode|app-trainer|" + NOTE + "|"
LAUNCH_FAILED = "31_1|31|0|FAILED|0|n2|2026-11-25T11:00:00|JobLaunchFailure|app-trainer|" + NOTE + "|"
NODE_FAIL = "31_1|31|0|NODE_FAIL|0|n2|2026-11-25T11:00:00|NodeDown|app-trainer|" + NOTE + "|"
CANCELLED = "31_1|31|0|CANCELLED|0|n2|2026-11-25T11:00:00|None|app-trainer|" + NOTE + "|"
TIMED_OUT = "31_1|31|0|TIMEOUT|0|n2|2026-11-25T11:00:00|TimeLimit|app-trainer|" + NOTE + "|"
COMPLETED = "31_1|31|0|COMPLETED|0|n2|2026-11-25T11:00:00|None|app-trainer|" + NOTE + "|"
COMPLETING = "31_1|31|0|COMPLETING|0|n2|2026-11-25T11:00:00|None|app-trainer|" + NOTE + "|"


def row(text: str) -> Row:
    (found,) = parse_rows(text)
    assert parse_rows(as_24_11(text)) == [found]
    return found


def runs(n: int, restarts: int = 0, node: int | None = None) -> str:
    return RUNNING.format(n=n, restarts=restarts, node=n + 1 if node is None else node)


def part(n: int, **changes: object) -> Part:
    made = Part(role="trainer", kind="trainer", number=n, script="/s", job=f"31_{n}", ticket="t1")
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def manifest(*parts: Part, retries: int = 3, **changes: object) -> Manifest:
    made = Manifest(
        app="app",
        run_dir="/runs/7",
        token_file="/runs/7/token",
        retries=retries,
        parts=parts or (part(0), part(1)),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def heard(
    silent_1: float = 0.0, *, silent_0: float = 0.0, over: Sequence[str] = (), uptime: float = 100.0
) -> LighthouseStatus:
    """Of two groups; `SILENT`: no stream."""
    silences = {"0": silent_0, "1": silent_1}
    there = tuple(Supervisor(group, 0, seconds) for group, seconds in silences.items() if seconds != SILENT)
    return LighthouseStatus(there, frozenset(over), uptime)


HEARD = heard()


class Watch:
    """The machine, with the job as it is in most tests: group 0 runs."""

    def __init__(self, made: Manifest | None = None) -> None:
        self.rules = JobRestarts()
        self.manifest = made or manifest()

    def __call__(self, text: str | None, at: float, said: LighthouseStatus | None = HEARD) -> list[Action]:
        """`text`: the row of group 1; None: Slurm doesn't know it."""
        return [a for a in self.all(text, at, said) if not isinstance(a, Reschedule)]

    def all(self, text: str | None, at: float, said: LighthouseStatus | None = HEARD) -> list[Action]:
        """Also that the scheduler is to make a round."""
        rows = [row(line) for line in (runs(0), text) if line is not None]
        return self.rules.poll(self.manifest, rows, said, at)


def test_nothing_is_done_while_all_is_well() -> None:
    watch = Watch()
    assert [watch(runs(1), float(t)) for t in range(200)] == [[]] * 200


def test_a_requeued_group_does_not_wait() -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert watch(BEGIN_TIME, 1) == [SkipBeginTime(part(1))]
    assert watch(BEGIN_TIME, 2) == [SkipBeginTime(part(1))]  # it was still being cleared away
    assert watch(runs(1, 1, node=4), 3) == []
    asked_for = BEGIN_TIME.replace("|1|PENDING", "|0|PENDING")  # a begin time that the user has asked for
    assert Watch()(asked_for, 0) == []


def test_the_budget_of_an_hour_ends_and_the_lighthouse_is_told() -> None:
    watch = Watch(manifest(part(0), part(1), retries=2))
    anew = [(t, a) for t in range(60) for a in watch(KILLED, float(t))]
    assert [(t, type(a)) for t, a in anew] == [(0, Resubmit), (5, Resubmit), (15, ReportLost)]  # with growing pauses
    (part_status,) = (a for _, a in anew if isinstance(a, ReportLost))
    assert "exit code 137, after 2 submissions within an hour" in part_status.lost["1"]
    watch = Watch(manifest(part(0), part(1), retries=1))
    assert [type(a) for a in watch(KILLED, 0)] == [Resubmit]
    assert watch(runs(1), 10) == []
    assert [type(a) for a in watch(KILLED, 3700)] == [Resubmit]


def test_where_no_other_node_is_free_the_bad_one_will_do_once_it_is_back() -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert [type(a) for a in watch(runs(1), 4, heard(4.0))] == [Resubmit]
    assert watch(RESOURCES, 5) == []
    assert watch(RESOURCES, 5 + Patience.lift) == [LiftExclusions(part(1))]
    assert watch(RESOURCES, 200) == []


@pytest.mark.parametrize("reason", ["None", "Resources", "ReqNodeNotAvail, UnavailableNodes:n2", "Dependency"])
def test_the_scheduler_is_asked_for_rounds_while_a_part_begins_to_wait_for_room(reason: str) -> None:
    watch = Watch()
    waits = RESOURCES.replace("|Resources|", f"|{reason}|")
    looks = 200
    asked = [t for t in range(looks) if Reschedule(part(1)) in watch.all(waits, float(t))]
    assert asked == list(range(0, int(Patience.scheduled), int(Patience.reschedule)))
    watch(runs(1, 1), looks)
    again = RESOURCES.replace("|31|1|", "|31|2|").replace("|Resources|", f"|{reason}|")
    assert watch.all(again, looks + 1.0) == [Reschedule(part(1))]  # it was requeued


@pytest.mark.parametrize("text", [KILLED, LAUNCH_FAILED, NODE_FAIL, TIMED_OUT])
def test_what_slurm_gave_up_is_submitted_anew(text: str) -> None:
    watch = Watch()
    watch(runs(1), 0)
    (action,) = watch(text, 1)
    assert isinstance(action, Resubmit)
    assert (action.part, action.exclude) == (part(1), ())
    assert "31_1" in action.why


def test_what_the_lighthouse_was_told_of_a_group_is_respected() -> None:
    watch = Watch()
    assert watch(GAVE_UP, 0, heard(SILENT, over=["1"])) == []
    assert watch(COMPLETED, 10, heard(SILENT, over=["1"])) == []
    assert watch(None, 100, heard(SILENT, over=["1"])) == []


@pytest.mark.parametrize("text", [GAVE_UP, COMPLETED])
def test_an_end_that_nobody_was_told_of_is_no_end(text: str) -> None:
    """srun says 1 for a step that it could not begin, and 0 after it has lost the node."""
    watch = Watch()
    assert watch(text, 0, heard(SILENT)) == []
    assert watch(text, 1, None) == []  # nobody to ask
    assert watch(text, 2, heard(SILENT)) == []
    assert [type(a) for a in watch(text, 2 + TIMING.watch_grace, heard(SILENT))] == [Resubmit]


def test_a_mistake_is_not_repeated() -> None:
    (action,) = Watch()(MISTAKE, 0, heard(SILENT))
    assert "code 2" in action.lost["1"]


def test_whoever_cancels_a_group_is_respected_until_it_is_started_again() -> None:
    watch = Watch()
    watch(runs(1), 0)
    (action,) = watch(CANCELLED, 1, heard(SILENT))
    assert "cancelled" in action.lost["1"]
    assert watch(CANCELLED, 2, heard(SILENT)) == []
    assert watch(None, 400, heard(SILENT)) == []  # Slurm has forgotten it
    assert watch(None, 500, heard(SILENT)) == []
    assert watch(runs(1, 1), 600) == [ReportLost({}, frozenset("1"))]  # scontrol requeue


def test_whoever_cancels_a_group_while_it_waits_is_respected_though_no_row_is_left_of_it() -> None:
    watch = Watch()
    watch(RESOURCES, 0)
    assert [watch(None, t) for t in (1.0, 2.0)] == [[], []]
    assert watch(None, 1.0 + TIMING.watch_grace) == [
        ReportLost({"1": "its job 31_1 was cancelled by Slurm's means while it waited"})
    ]
    assert watch(None, 100.0) == []
    watch = Watch()  # one that ran is not known to have been cancelled
    watch(runs(1), 0)
    assert watch(None, 1.0 + TIMING.watch_grace) == []


def test_what_the_lighthouse_could_not_be_told_is_told_again() -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert [type(a) for a in watch(CANCELLED, 1)] == [ReportLost]
    watch.rules.not_told(ReportLost({"1": ""}))
    assert [type(a) for a in watch(CANCELLED, 2)] == [ReportLost]
    assert watch(CANCELLED, 3) == []
    watch = Watch()
    watch.rules.recall({}, 0.0, {"1": "its job 31_1 was cancelled"})  # a new watcher knows who was given up
    assert [watch(None, float(t), heard(SILENT)) for t in range(0, 100, 10)] == [[]] * 10


def test_a_stream_that_comes_back_and_a_group_that_has_not_come_yet_are_no_loss() -> None:
    watch = Watch()
    for t in range(0, 100, 4):
        assert watch(runs(1), float(t), heard(SILENT if t % 8 else 0.1)) == []
    watch = Watch()
    assert [watch(runs(1), float(t), heard(SILENT)) for t in range(100)] == [[]] * 100


@pytest.mark.parametrize("text", [ADMIN_HELD, COMPLETING, runs(1).replace("RUNNING", "SUSPENDED")])
def test_what_somebody_holds_and_what_is_being_ended_is_left_alone(text: str) -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert [watch(text, float(t), heard(SILENT)) for t in range(1, 100)] == [[]] * 99


def test_what_slurm_holds_after_a_launch_that_failed_is_submitted_anew_for_other_nodes() -> None:
    watch = Watch()
    watch(runs(1), 0)
    again = Resubmit(part(1), "Slurm holds its job 31_1 after a failed launch", ("n2",))
    assert watch(HELD, 1) == [again]
    assert watch(HELD, 2) == []  # not without a pause
    assert watch(HELD, 6) == [again]


def test_a_group_on_a_silent_node_is_begun_elsewhere_before_slurm_finds_out() -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert watch(runs(1), 1, heard(2.1)) == []
    assert watch(runs(1), 1.8, heard(2.9)) == []
    (action,) = watch(runs(1), 2.4, heard(SILENT))  # the stream has ended by now
    assert isinstance(action, Resubmit)
    assert (action.exclude, action.why) == (("n2",), "its supervisor on n2 has been silent for 3.5 s")


@pytest.mark.parametrize(
    "said",
    [
        heard(SILENT, silent_0=SILENT),  # it may be the lighthouse that is cut off
        heard(9.0, silent_0=9.0),
        heard(SILENT, over=["1"]),  # it is done
        heard(SILENT, uptime=5.0),  # a new lighthouse has not heard of it yet
        None,
    ],
)
def test_a_silence_that_may_be_somebody_elses_costs_no_group(said: LighthouseStatus | None) -> None:
    watch = Watch()
    watch(runs(1), 0)
    assert [watch(runs(1), float(t), said) for t in range(1, 10)] == [[]] * 9


def test_of_a_group_over_several_nodes_only_the_silent_one_is_excluded() -> None:
    watch = Watch(manifest(part(0), part(1, nodes=2)))
    both = runs(1).replace("|n2|", "|n[2-3]|")

    def said(silent: float) -> LighthouseStatus:
        return LighthouseStatus(
            (Supervisor("0", 0, 0.1), Supervisor("1", 0, 0.1), Supervisor("1", 1, silent)), frozenset(), 99.0
        )

    watch(both, 0, said(0.1))
    (action,) = watch(both, 6, said(6.0))
    assert isinstance(action, Resubmit)
    assert action.exclude == ("n3",)


def test_the_replaced_attempt_is_cancelled_whoever_replaced_it() -> None:
    now = manifest(part(0), part(1, job="40_1", ticket="t2", earlier=("31_1",)))
    rows = [row(runs(0)), row(runs(1)), row(runs(1).replace("31_1|31", "40_1|40"))]
    rules = JobRestarts()
    assert rules.poll(now, rows, heard(), 0.0) == [Cancel(("31_1",))]
    rows[1] = row(COMPLETING)
    assert rules.poll(now, rows, heard(), 1.0) == []


def test_a_submission_is_given_time_and_then_made_again() -> None:
    watch = Watch(manifest(part(0), part(1, job=SUBMITTING, ticket="t2", earlier=("31_1",))))
    assert watch(None, 0, heard(SILENT)) == []
    assert watch(None, 44, heard(SILENT)) == []
    (action,) = watch(None, 45, heard(SILENT))
    assert isinstance(action, Resubmit)
    assert "interrupted" in action.why
    arrived = Watch(manifest(part(0), part(1, job=SUBMITTING, ticket="t1")))
    assert arrived(runs(1), 0) == [RecordSubmission(arrived.manifest.parts[1], "31_1")]


def test_a_group_that_the_job_does_not_have_is_left_alone() -> None:
    assert Watch(manifest(part(0), part(1, gone=True)))(CANCELLED, 0) == []


def test_what_slurm_has_forgotten_is_submitted_anew_if_it_is_not_heard() -> None:
    watch = Watch()
    assert [watch(None, float(t)) for t in range(100)] == [[]] * 100  # it trains on: the controller has lost its books
    assert watch(None, 100, heard(SILENT)) == []
    assert [type(a) for a in watch(None, 130, heard(SILENT))] == [Resubmit]


def test_a_refusal_of_slurm_is_no_restart() -> None:
    watch = Watch(manifest(part(0), part(1), retries=1))
    tried = []
    for t in range(120):
        for action in watch(KILLED, float(t)):
            assert isinstance(action, Resubmit)
            tried.append(t)
            watch.rules.refused(action.part, float(t))
    assert tried == list(range(0, 120, 10))


def test_a_group_that_never_reports_is_started_elsewhere() -> None:
    """A node that starts nothing: Slurm calls the job RUNNING, and nobody hears of it."""
    watch = Watch(manifest(part(0), part(1), start_deadline=100.0))
    assert watch(runs(1), 0, heard(SILENT)) == []
    assert watch(runs(1), 99, heard(SILENT)) == []
    assert watch(runs(1), 101, heard(SILENT, uptime=50.0)) == []  # a new lighthouse has not heard of it yet
    assert watch(runs(1), 101, None) == []
    (action,) = watch(runs(1), 101, heard(SILENT))
    assert isinstance(action, Resubmit)
    assert (action.part.number, action.exclude) == (1, ("n2",))
    assert "has not reported within 100 s of its start" in action.why


def test_a_group_that_was_requeued_has_its_start_deadline_again() -> None:
    watch = Watch(manifest(part(0), part(1), start_deadline=100.0))
    assert watch(runs(1), 0, heard(SILENT)) == []
    assert watch(runs(1, restarts=1), 90, heard(SILENT)) == []
    assert watch(runs(1, restarts=1), 150, heard(SILENT)) == []
    assert watch(runs(1, restarts=1), 191, heard(SILENT)) != []


def test_the_next_watcher_goes_on_from_what_the_one_before_it_knew() -> None:
    """On a host with another clock; JSON in between."""
    watch = Watch(manifest(part(0), part(1), retries=1))
    assert [type(a) for a in watch(KILLED, 0)] == [Resubmit]
    watch(runs(1), 10)
    text = json.loads(json.dumps(watch.rules.remember(unix=1000.0)))
    other = Watch(watch.manifest)
    other.rules.recall(text, unix=-5000.0, lost={})
    # the lighthouse was lost with the watcher; this group's supervisor, too
    assert other(runs(1), 6020, heard(SILENT)) == []
    (action,) = other(runs(1), 6026, heard(SILENT))
    assert isinstance(action, ReportLost)  # the budget was used up before


def test_a_group_that_slurm_runs_is_not_known_to_run_before_its_supervisors_were_heard_or_while_they_are_silent() -> (
    None
):
    watch = Watch(manifest(part(0), part(1, nodes=2)))

    def why(text: str) -> str:
        note = json.loads(json.dumps(watch.rules.remember(unix=1000.0)))
        return why_unheard(note.get("trainer/1"), part(1, nodes=2), row(text))

    begun = runs(1).replace("|n2|", "|n[2-3]|")
    assert why(begun).startswith("Slurm has run it on n2, n3 since 2026-11-25T11:00:00, and nobody has heard of")
    watch(begun, 0)
    assert why(begun).startswith("Slurm has run it on n3 since")
    both = LighthouseStatus((*HEARD.supervisors, Supervisor("1", 1, 0.1)), frozenset(), 100.0)
    watch(begun, 1, both)
    watch(begun, 2, None)  # the lighthouse is away
    assert why(begun) == ""
    watch(begun, 4)
    assert why(begun) == f"its supervisor has been silent since {time.strftime('%H:%M:%S', time.localtime(1004))}"
    watch(begun, 5, both)
    assert why(begun) == ""
    again = begun.replace("|31|0|", "|31|1|")
    assert why(again).startswith("Slurm has run it on n2, n3 since")  # whatever was heard of the start before


@pytest.mark.parametrize("found", [None, [], {"trainer/1": 3}, {"trainer/1": {}}, {"trainer/1": {"start": [1]}}])
def test_what_is_no_memory_is_left_out(found: object) -> None:
    watch = Watch()
    watch.rules.recall(found, 0.0, {})
    assert watch(runs(1), 0) == []


def test_heard_from_a_lighthouses_status() -> None:
    status = {
        "uptime": 3,
        "supervisors": [{"group": "0", "node": 0, "host": "n1", "heard": 0.25}],
        "groups": {"0": {"state": "running"}, "1": {"state": "finished"}, "2": {"state": "failed"}},
    }
    assert read_status(status) == LighthouseStatus((Supervisor("0", 0, 0.25),), frozenset({"1", "2"}), 3.0)


@pytest.mark.parametrize("status", [{}, {"supervisors": 1, "uptime": 0}, {"supervisors": [{}], "uptime": 0}])
def test_another_programs_answer_is_no_status(status: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        read_status(status)


@pytest.mark.parametrize("text", [BEGIN_TIME.replace("|1|PENDING", "|0|PENDING"), ADMIN_HELD, HELD, runs(1)])
def test_what_does_not_wait_for_room_asks_for_no_round_and_one_is_for_all_parts(text: str) -> None:
    watch = Watch()
    watch(runs(1), 0)
    found = [a for t in range(1, 100) for a in watch.all(text, float(t))]
    assert not any(isinstance(a, Reschedule) for a in found)
    rows = [*(row(RESOURCES.replace("31_1", f"31_{n}")) for n in range(3))]
    found = JobRestarts().poll(manifest(*map(part, range(3))), rows, HEARD, 0.0)
    assert [type(a) for a in found] == [Reschedule]
