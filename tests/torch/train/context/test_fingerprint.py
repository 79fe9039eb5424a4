"""What a rank declares by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.train.fakes import FakeManager
from torchft_x._version import __version__
from torchft_x.core.fingerprint import Fingerprint, Trait, difference
from torchft_x.errors import ConfigError
from torchft_x.train.context.fingerprint import FingerprintBuilder
from torchft_x.train.ddp.buckets import plan_buckets
from torchft_x.train.ddp.fingerprint import declare_model


def shown(traits: Fingerprint) -> list[tuple[str, str]]:
    return [(x.name, x.words) for x in traits.items]


def test_versions_and_size_come_first() -> None:
    d = FingerprintBuilder(4, ())
    d.add("data set", "a.txt")
    assert shown(d.traits) == [
        ("torchft_x", __version__),
        ("PyTorch", torch.__version__),
        ("group world size", "4"),
        ("data set", "a.txt"),
    ]


def test_what_may_differ_is_not_declared() -> None:
    d = FingerprintBuilder(4, ("group world size", "PyTorch", "model"))
    d.add("model", "a")
    assert shown(d.traits) == [("torchft_x", __version__)]
    with pytest.raises(ConfigError, match="tuple of names"):
        FingerprintBuilder(4, "group world size")


def test_a_name_given_again_is_numbered() -> None:
    d = FingerprintBuilder(1, ())
    d.add("model", "generator")
    d.add("model", "critic")
    assert shown(d.traits)[-2:] == [("model", "generator"), ("model 2", "critic")]


def declared(module: nn.Module, **kwargs: int) -> dict[str, Trait]:
    manager: Any = FakeManager(None, 1)
    params = [p for p in module.parameters() if p.requires_grad]
    declare_model(manager, module, plan_buckets(params, **kwargs))
    return manager.declared


def test_a_model_is_its_names_shapes_dtypes_and_what_is_trained() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).bfloat16())
    net[0].bias.requires_grad_(False)
    model = declared(net)["model"]
    assert model.words == "4 tensors, 13 values"
    assert model.parts == (
        "0.weight (3, 2) float32",
        "0.bias (3,) float32 frozen",
        "1.weight (1, 3) bfloat16",
        "1.bias (1,) bfloat16",
    )


def net(*more: nn.Module, frozen: bool = False) -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), *more)
    made[0].weight.requires_grad_(not frozen)
    return made


@pytest.mark.parametrize(
    "other", [net().double(), net(nn.Linear(1, 1)), net(frozen=True), nn.ModuleDict({"a": net()})], ids=range(4)
)
def test_other_models_have_other_digests(other: nn.Module) -> None:
    assert declared(net())["model"] == declared(net(nn.ReLU()))["model"]
    assert declared(other)["model"].digest != declared(net())["model"].digest


def test_other_buckets_of_the_same_model_are_seen() -> None:
    net = nn.Linear(100, 100)
    one, many = declared(net), declared(net, first_bytes=1, bucket_bytes=1)
    assert one["model"] == many["model"]
    conv = nn.Conv2d(2, 2, 3)
    before = declared(conv)["bucket layout"].digest
    assert declared(conv)["bucket layout"].digest == before
    # Of other element order.
    assert declared(conv.to(memory_format=torch.channels_last))["bucket layout"].digest != before
    found = difference(Fingerprint((many["bucket layout"],)), Fingerprint((one["bucket layout"],)))
    assert found is not None
    assert "has bucket 0 of 100 values float32 where group 0's has bucket 0 of 10,102 values" in found.clause(
        "group 0's"
    )
