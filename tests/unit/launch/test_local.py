"""What a job on this machine is given: its GPUs, with made-up machines. Real jobs: tests/process/launch/test_local.py."""

from __future__ import annotations

import dataclasses
import os

import pytest
from torchx import specs

from torchft_x import env
from torchft_x.launch.process import devices
from torchft_x.launch.schedulers.role import FtRole, RoleFacts

FOUR = devices.Torch("2.13.0", 4, "NVIDIA", "gloo")


@dataclasses.dataclass
class Replica:
    env: dict[str, str]
    args: list[str]


class Request:
    """The local scheduler's, as far as we look at it."""

    def __init__(self, *roles: FtRole, **environ: str) -> None:
        self.role_params = {
            r.name: [Replica(dict(environ), ["supervise"]) for _ in range(r.num_replicas)] for r in roles
        }
        self.request = self

    def gpus(self, role: str, variable: str = "CUDA_VISIBLE_DEVICES") -> list[str | None]:
        return [r.env.get(variable) for r in self.role_params[role]]


def prepared(*roles: FtRole, **environ: str) -> Request:
    request = Request(*roles, **environ)
    for role in roles:
        role.pre_proc("local", request)
    return request


def trainer(gpu: int, replicas: int = 2, name: str = "trainer", **environ: str) -> FtRole:
    resource = specs.Resource(cpu=1, gpu=gpu, memMB=1)
    facts = RoleFacts(kind="trainer", groups=2)
    return FtRole(name=name, image="", env=environ, num_replicas=replicas, resource=resource, ft=facts)


@pytest.fixture(autouse=True)
def asks_again() -> None:
    devices.of_this_process.cache_clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A function that says what torch sees, at first four GPUs."""

    def has(found: devices.Torch) -> None:
        devices.of_this_process.cache_clear()
        monkeypatch.setattr(devices, "ask_torch", lambda environ: found)

    has(FOUR)
    return has


def test_nodes_of_one_group_have_their_own(machine) -> None:
    role = trainer(1, replicas=4)
    role.ft = dataclasses.replace(role.ft, nodes=2)
    request = prepared(role)
    assert request.gpus("trainer") == ["0", "1", "2", "3"]


def test_torchxs_own_option_is_overruled(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    first, second = trainer(1, 1), trainer(1, 1, name="evaluator")
    request = prepared(first, second, CUDA_VISIBLE_DEVICES="0")
    assert [request.gpus(r)[0] for r in ("trainer", "evaluator")] == ["2", "3"]
    machine(FOUR._replace(vendor="AMD"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    request = prepared(first, CUDA_VISIBLE_DEVICES="0")
    assert request.gpus("trainer", "HIP_VISIBLE_DEVICES") == ["0"]
    assert request.gpus("trainer") == [None]


def test_a_second_role_gets_others(machine) -> None:
    roles = trainer(1), trainer(1, 2, name="evaluator")
    request = prepared(*roles)
    assert [request.gpus(r.name) for r in roles] == [["0", "1"], ["2", "3"]]
    with pytest.raises(SystemExit, match="other roles have 4;"):
        trainer(1, 2, name="third").pre_proc("local", request)


def test_the_users_own_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(devices, "ask_torch")
    role = trainer(1, CUDA_VISIBLE_DEVICES="${replica_id}")
    request = Request(role)
    for k, replica in enumerate(request.role_params["trainer"]):
        replica.env["CUDA_VISIBLE_DEVICES"] = f"{k}"
    role.pre_proc("local", request)
    assert request.gpus("trainer") == ["0", "1"]


def test_without_gpu_nothing_is_hidden_and_torch_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(devices, "ask_torch")
    role = trainer(0)
    request = prepared(role)
    assert request.gpus("trainer") == [None, None]


def test_a_request_of_another_shape_is_checked_all_the_same(machine) -> None:
    trainer(2).pre_proc("local", object())
    with pytest.raises(SystemExit, match=r"torchft_x: --gpu 3 for 2 replicas .* needs 6, but there are 4"):
        trainer(3).pre_proc("local", object())


def test_gpus_need_a_machine_that_has_one(machine) -> None:
    machine(FOUR._replace(devices=0, vendor="none"))
    with pytest.raises(SystemExit, match=r"torchft_x: --gpu 1: this machine has no GPU .*; leave --gpu out"):
        trainer(1).pre_proc("local", object())


def test_a_job_knows_its_launcher() -> None:
    request = prepared(trainer(0))
    assert [r.args[1:] for r in request.role_params["trainer"]] == [["--launcher_pid", str(os.getpid())]] * 2


@pytest.mark.parametrize("scheduler", ["local", "slurm", "kubernetes", "local_docker", "something_new"])
def test_requests_of_another_shape_are_left_alone(scheduler: str) -> None:
    unknown = object()
    assert trainer(64 * (scheduler != "local")).pre_proc(scheduler, unknown) is unknown


def test_the_lighthouses_names_are_looked_up() -> None:
    addresses = "http://localhost:1,http://no.such.host.invalid:1"
    role = FtRole(name="trainer", image="", env={env.LIGHTHOUSE: addresses})
    with pytest.raises(SystemExit, match=r"TORCHFT_LIGHTHOUSE\) http://no\.such\.host\.invalid:1"):
        role.pre_proc("local", object())
