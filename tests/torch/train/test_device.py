"""Which device a rank takes, and what connects the groups then. Pure: machines with accelerators are made up here.

No test of this repository has run these scripts on a real accelerator: `./scripts/gpu_check` does, on a machine with one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchft_x.errors import ConfigError
from torchft_x.train.device import (
    LocalDevices,
    choose_device,
    choose_process_group,
    in_group_backend,
    local_device,
    local_devices,
)


def devices(kind: str | None = "cuda", count: int = 8, **fields: Any) -> LocalDevices:
    usual = {"group": 0, "groups": 2, "local_rank": 0, "local_ranks": 1, "own": False}
    return LocalDevices(kind=kind, count=count, **(usual | fields))


@pytest.mark.parametrize(
    ("asked", "where", "device"),
    [
        ("auto", devices(None, 0), "cpu"),
        ("auto", devices(), "cuda:0"),
        ("auto", devices("xpu", 2, local_rank=1, local_ranks=2, own=True), "xpu:1"),
        ("cpu", devices(), "cpu"),
        ("cuda", devices(local_rank=3, local_ranks=4, own=True), "cuda:3"),
        ("cuda:5", devices(), "cuda:5"),
        ("auto", devices(group=1), "cuda:1"),  # groups that see the same devices take different ones
        ("auto", devices(group=1, local_rank=3, local_ranks=4), "cuda:7"),
        (
            "auto",
            devices(count=4, group=3, local_rank=2, local_ranks=4, own=True),
            "cuda:2",
        ),  # the launcher has shared out
        ("auto", devices(count=1, group=1), "cuda:0"),
    ],
)
def test_each_rank_has_a_device(asked: str, where: LocalDevices, device: str) -> None:
    assert choose_device(asked, where) == torch.device(device)


@pytest.mark.parametrize(
    ("asked", "where", "sentence"),
    [
        ("cuda", devices(None, 0), r"--device cuda: .* sees no accelerator at all here; leave --device out"),
        ("xpu", devices(), r"sees 8 of kind cuda"),
        ("cuda:8", devices(), r"there are 8 here, counted from 0"),
        ("gpu", devices(), r"--device 'gpu' is none of auto, cpu, cuda, xpu"),
        ("meta", devices(), r"is none of"),
    ],
)
def test_a_device_that_is_not_there_gets_a_sentence(asked: str, where: LocalDevices, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_device(asked, where)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (devices(count=8, groups=2, local_ranks=4), "nccl"),  # enough for all, even on one host
        (devices(count=1, groups=2), "gloo"),  # two groups on one card: NCCL refuses
        (devices(count=8, groups=4, local_ranks=8, own=True), "nccl"),  # four hosts, each group with its own eight
        (devices(count=1, groups=2, local_ranks=2, own=True), "gloo"),  # two ranks of a group on one card
        (devices(count=8, groups=0, group=9, local_ranks=1), "gloo"),  # nobody says how many groups there are
        (devices("xpu", 2), "xccl"),
    ],
)
def test_the_library_is_used_where_no_device_is_shared(where: LocalDevices, kind: str) -> None:
    assert choose_process_group("auto", choose_device("auto", where), where) == kind


def test_a_process_group_that_does_not_fit_gets_a_sentence() -> None:
    cpu = torch.device("cpu")
    assert choose_process_group("auto", cpu, devices()) == "gloo"
    assert choose_process_group("gloo", torch.device("cuda", 0), devices()) == "gloo"
    with pytest.raises(ConfigError, match="nccl takes no tensors on cpu"):
        choose_process_group("nccl", cpu, devices())
    with pytest.raises(ConfigError, match="'mpi' is none of auto, gloo, nccl, xccl"):
        choose_process_group("mpi", cpu, devices())


def test_what_torchrun_and_the_launcher_say() -> None:
    told = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "REPLICA_GROUP_ID": "2", "NUM_REPLICA_GROUPS": "5"}
    here = local_devices({**told, "TORCHFT_X_ATTEMPT": '{"own_gpus": true}'})
    assert (here.local_rank, here.local_ranks, here.group, here.groups, here.own) == (3, 4, 2, 5, True)
    assert not local_devices(told).own


@pytest.mark.skipif(
    torch.accelerator.is_available(), reason="there is an accelerator; ./scripts/gpu_check looks at that"
)
def test_without_an_accelerator_it_is_the_cpu() -> None:
    assert local_device() == torch.device("cpu")
    assert in_group_backend(torch.device("cpu")) == "gloo"
