"""May a job have that many groups, and what does a new one get? Pure."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.devices.assignment import Machine
from torchft_x.launch.keeper import groups
from torchft_x.launch.keeper.plan import JobPlan, Process, RolePlan
from torchft_x.launch.keeper.upkeep import Replica

FOUR = Machine("NVIDIA", ("0", "1", "2", "3"), "made up")


def trainer(gpu: int = 0, workers: str = "1", **environ: str) -> RolePlan:
    template = Process(args=("python", "supervise", "--workers", workers, "--", "x.py"), env=environ)
    return RolePlan(name="trainer", replicas=(template,) * 2, kind="trainer", gpu=gpu, template=template)


def plan(*roles: RolePlan, min_replicas: int = 1) -> JobPlan:
    return JobPlan(app_id="a", session="s", run_dir="/r", log_dir="/r/l", roles=roles, min_replicas=min_replicas)


def test_more_and_fewer() -> None:
    role = trainer()
    for wanted in (1, 2, 7):
        assert groups.check(plan(role), wanted, []) is role


@pytest.mark.parametrize("wanted", [-1, 0, 1, 5000])
def test_a_number_that_cant_be(wanted: int) -> None:
    with pytest.raises(ConfigError, match=rf"--replicas is {wanted}; it must lie between 2 "):
        groups.check(plan(trainer(), min_replicas=2), wanted, [])


def test_jobs_whose_number_cant_change() -> None:
    with pytest.raises(ConfigError, match="no replica groups"):
        groups.check(plan(), 2, [])
    with pytest.raises(ConfigError, match="differ in size"):
        groups.check(plan(trainer(workers="1,2")), 3, [])
    done = Replica(trainer(), 1)
    done.ended(0, 1.0)
    with pytest.raises(ConfigError, match="about to end: group 1 has finished"):
        groups.check(plan(trainer()), 3, [done])


def test_new_groups_get_devices_that_nobody_has() -> None:
    others = [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "2"}, {}]
    shares = groups.share_devices(trainer(gpu=1), 2, FOUR, {}, others)
    assert shares == [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "3"}]
    with pytest.raises(ConfigError, match="needs 3, but there are 4"):
        groups.share_devices(trainer(gpu=1), 3, FOUR, {}, others)


def test_devices_that_the_user_has_named_are_everybodys() -> None:
    role = trainer(gpu=1, CUDA_VISIBLE_DEVICES="0,1")
    assert groups.share_devices(role, 2, None, {}, []) == [{}, {}]
    assert groups.share_devices(trainer(), 1, None, {}, []) == [{}]
    with pytest.raises(ConfigError, match="no GPU any more"):
        groups.share_devices(trainer(gpu=1), 1, None, {}, [])
