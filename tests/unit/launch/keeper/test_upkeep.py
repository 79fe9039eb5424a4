"""When a keeper starts something again, and when the job is over: made-up ends and times."""

from __future__ import annotations

import signal

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.keeper import upkeep
from torchft_x.launch.keeper.plan import JobPlan, Process, RolePlan
from torchft_x.launch.keeper.upkeep import LIGHTHOUSE_RULES, Outcome, Replica, outcome
from torchft_x.launch.process import devices

KILLED = -signal.SIGKILL
TERMINATED = 128 + signal.SIGTERM


def role(kind: str, *, replicas: int = 2, nodes: int = 1, max_restarts: int = 10) -> RolePlan:
    process = Process(args=("program",), env={})
    name = kind or "program"
    return RolePlan(name=name, replicas=(process,) * replicas, kind=kind, nodes=nodes, max_restarts=max_restarts)


def running(kind: str, number: int = 0, **options: int) -> Replica:
    replica = Replica(role(kind, **options), number)
    replica.started(0.0)
    return replica


@pytest.mark.parametrize("code", [KILLED, TERMINATED])
@pytest.mark.parametrize("kind", ["trainer", "lighthouse", "sidecar"])
def test_a_supervisor_that_somebody_else_has_ended_is_started_again(kind: str, code: int) -> None:
    replica = running(kind)
    again = replica.ended(code, 100.0)
    assert (replica.due, replica.state, replica.starts) == (100.0, "PENDING", 1)
    assert "after 100.0 s; it is started again" in again
    replica.started(100.0)
    assert replica.state == "RUNNING"


@pytest.mark.parametrize(
    ("kind", "codes"),
    [("trainer", (0, 1, 2)), ("lighthouse", (0, 1, 2)), ("sidecar", (0, 1, 2)), ("", (0, 7, KILLED))],  # "": not ours
)
def test_what_it_says_itself_is_final_and_what_isnt_ours_is_never_started_again(
    kind: str, codes: tuple[int, ...]
) -> None:
    for code in codes:
        replica = running(kind)
        sentence = replica.ended(code, 1.0)
        assert replica.over
        assert replica.state == ("FAILED" if code else "SUCCEEDED")
        assert bool(sentence) == bool(code)


def test_the_budget_is_the_roles() -> None:
    replica = running("trainer", max_restarts=3)
    for k in range(3):
        replica.ended(KILLED, 100.0 * k)
        assert not replica.over
    sentence = replica.ended(KILLED, 400.0)
    assert sentence.startswith("the supervisor of group 0 is given up: killed by SIGKILL")
    assert "3 restarts within" in sentence
    assert replica.state == "FAILED"


def test_kills_in_a_row_are_held_back_more_and_more() -> None:
    replica = running("trainer")
    pauses = []
    for _ in range(6):
        replica.ended(KILLED, 1.0)
        pauses.append(replica.due - 1.0)
        replica.started(0.9)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_crashes_of_its_own_are_given_up() -> None:
    replica = running("trainer")
    over = []
    for code in (70, -signal.SIGSEGV, 70):
        replica.ended(code, 1.0)
        over.append(replica.over)
    assert over == [False, False, True]


def test_a_lighthouses_budget_is_its_own() -> None:
    replica = running("lighthouse", max_restarts=0)
    for k in range(LIGHTHOUSE_RULES.max_restarts):
        replica.ended(KILLED, 50.0 * k)
        assert not replica.over


def test_whoever_was_told_to_go_is_not_started_again() -> None:
    replica = running("trainer")
    replica.leaving = True
    assert replica.ended(TERMINATED, 1.0) == ""
    assert (replica.over, replica.state) == (True, "CANCELLED")


def test_names() -> None:
    assert running("trainer", 3).name == "group 3"
    assert running("trainer", 3, nodes=2).name == "group 1 (node 1)"
    assert running("lighthouse", replicas=1).name == "lighthouse"
    assert running("lighthouse", 1).name == "lighthouse 1"


def ended(kind: str, code: int, number: int = 0) -> Replica:
    replica = running(kind, number)
    replica.ended(code, 1.0)
    return replica


def test_all_lighthouses_decide() -> None:
    trainers = [running("trainer"), ended("trainer", 1, 1)]
    assert outcome([running("lighthouse"), *trainers], {}) is None
    assert outcome([ended("lighthouse", 0), running("lighthouse", 1)], {}) is None
    assert outcome([ended("lighthouse", 0), *trainers], {}) == Outcome("SUCCEEDED", "")
    both = outcome([ended("lighthouse", 0), ended("lighthouse", 1, 1), *trainers], {"lighthouse 1": "The job failed."})
    assert both == Outcome("FAILED", "lighthouse 1 ended with code 1: The job failed.")


def test_without_one_the_groups_do() -> None:
    first, beside = ended("trainer", 0), running("sidecar")
    assert outcome([first, running("trainer", 1), beside], {}) is None
    assert outcome([first, ended("trainer", 0, 1), beside], {}) == Outcome("SUCCEEDED", "")
    assert outcome([first, ended("trainer", 1, 1), beside], {}) == Outcome("FAILED", "group 1 ended with code 1")


def test_groups_that_were_told_to_go_dont_count() -> None:
    gone = running("trainer", 1)
    gone.leaving = True
    gone.ended(TERMINATED, 1.0)
    assert outcome([ended("trainer", 0), gone], {}) == Outcome("SUCCEEDED", "")


def test_of_other_programs_all_must_end_well() -> None:
    assert outcome([ended("", 0), running("", 1)], {}) is None
    assert outcome([ended("", 0), ended("", 0, 1)], {}) == Outcome("SUCCEEDED", "")
    assert outcome([ended("", 0), ended("", KILLED, 1)], {}) == Outcome("FAILED", "program 1 killed by SIGKILL")


def trainer(gpu: int = 0, workers: str = "1", **environ: str) -> RolePlan:
    template = Process(args=("python", "supervise", "--workers", workers, "--", "x.py"), env=environ)
    return RolePlan(name="trainer", replicas=(template,) * 2, kind="trainer", gpu=gpu, template=template)


def plan(*roles: RolePlan, min_replicas: int = 1) -> JobPlan:
    return JobPlan(app_id="a", session="s", run_dir="/r", log_dir="/r/l", roles=roles, min_replicas=min_replicas)


def test_more_and_fewer() -> None:
    role = trainer()
    for wanted in (1, 2, 7):
        assert upkeep.check_scale(plan(role), wanted, []) is role


@pytest.mark.parametrize("wanted", [-1, 0, 1, 5000])
def test_a_number_that_cant_be(wanted: int) -> None:
    with pytest.raises(ConfigError, match=rf"--replicas is {wanted}; it must lie between 2 "):
        upkeep.check_scale(plan(trainer(), min_replicas=2), wanted, [])


def test_jobs_whose_number_cant_change() -> None:
    with pytest.raises(ConfigError, match="no replica groups"):
        upkeep.check_scale(plan(), 2, [])
    with pytest.raises(ConfigError, match="differ in size"):
        upkeep.check_scale(plan(trainer(workers="1,2")), 3, [])
    done = Replica(trainer(), 1)
    done.ended(0, 1.0)
    with pytest.raises(ConfigError, match="about to end: group 1 has finished"):
        upkeep.check_scale(plan(trainer()), 3, [done])


def test_new_groups_get_devices_that_nobody_has() -> None:
    four = devices.Usable("CUDA_VISIBLE_DEVICES", tuple("0123"), "as torch counts them")
    others = [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "2"}, {}]
    shares = upkeep.share_devices(trainer(gpu=1), 2, four, others)
    assert shares == [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "3"}]
    with pytest.raises(ConfigError, match="needs 3, but there are 4"):
        upkeep.share_devices(trainer(gpu=1), 3, four, others)


def test_roles_that_share_no_devices() -> None:
    role = trainer(gpu=1, CUDA_VISIBLE_DEVICES="0,1")
    assert upkeep.share_devices(role, 2, None, []) == [{}, {}]
    assert upkeep.share_devices(trainer(), 1, None, []) == [{}]
