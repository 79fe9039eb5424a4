"""flatten -> dump -> parse -> rebuild, without a wire; and manifests that lie."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.torch.transfer.states import same, states, tensors
from torchft_x.errors import TransferError
from torchft_x.transfer import register_leaf
from torchft_x.transfer.format import leaves, limits
from torchft_x.transfer.format.blocks import place_blobs
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout, dump, parse
from torchft_x.transfer.format.memory import allocate
from torchft_x.transfer.format.rebuild import find_targets, rebuild
from torchft_x.transfer.snapshot import copy_to_host

quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def carry(state: Any, into: Any = None) -> Any:
    """A state dict through manifest and bytes, as a transport would."""
    layout, sources = flatten(state)
    starts, length = place_blobs(layout.blobs)
    buffer = allocate(max(length, 1))
    copy_to_host(sources, starts, buffer)
    arrived = parse(dump(layout))
    targets = find_targets(arrived, into)
    landing = Landing(arrived, targets)
    for start, memory in zip(starts, landing.memory, strict=True):
        memory.copy_(buffer[start : start + memory.numel()])
    return rebuild(arrived, targets, landing.finish())


@quick
@given(states)
def test_round_trip_is_bit_exact(state: Any) -> None:
    assert same(carry(state), state)


DESTINATIONS = st.sampled_from(["same", "contiguous", "other shape", "missing"])


@quick
@given(st.lists(st.tuples(tensors(), DESTINATIONS), min_size=1, max_size=4))
def test_round_trip_into_tensors_of_other_strides(pairs: list[tuple[torch.Tensor, str]]) -> None:
    state = {i: t for i, (t, _) in enumerate(pairs)}
    into: dict[int, torch.Tensor] = {}
    for i, (t, kind) in enumerate(pairs):
        if kind == "same":
            into[i] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        elif kind == "contiguous":
            into[i] = torch.empty(t.shape, dtype=t.dtype)
        elif kind == "other shape":
            into[i] = torch.empty(7, dtype=t.dtype)
    result = carry(state, into)
    for i, t in state.items():
        assert same(result[i].data, t.data)
        if i in into and into[i].shape == t.shape:
            assert result[i] is into[i]


def test_shared_memory_travels_once_and_is_shared_again() -> None:
    base = torch.arange(1000.0)
    state = {"all": base, "part": base[10:20], "wide": base[:1].expand(1000, 1000), "other": base.clone()}
    layout, sources = flatten(state)
    assert sum(layout.blobs) == 2 * 4000
    assert len(sources) == 2
    result = carry(state)
    result["all"][10] = -1
    assert result["part"][0] == -1
    assert result["other"][10] == 10


def test_a_view_of_a_large_storage_costs_only_itself() -> None:
    base = torch.zeros(1000, 1000)
    assert flatten([base[5]])[0].blobs == (4000,)
    assert flatten([base[:, 5]])[0].blobs == (4000,)
    assert flatten([base[3], base[4]])[0].blobs == (4000, 4000)


def test_tensors_tied_at_the_source_only_are_both_filled() -> None:
    weight = torch.arange(5.0)
    into = {"a": torch.zeros(5), "b": torch.zeros(5)}
    result = carry({"a": weight, "b": weight}, into)
    assert result["a"] is into["a"]
    assert result["b"] is into["b"]
    assert same(into, {"a": weight, "b": weight})


def test_an_expanded_view_tied_at_the_source_only() -> None:
    base = torch.arange(3.0)
    into = {"all": torch.zeros(3), "wide": torch.zeros(1).expand(4)}
    result = carry({"all": base, "wide": base[1:2].expand(4)}, into)
    assert result["wide"] is into["wide"]
    assert into["wide"].tolist() == [1, 1, 1, 1]


def test_tensors_tied_at_the_destination_only() -> None:
    shared = torch.zeros(5)
    result = carry({"a": torch.arange(5.0), "b": torch.arange(5.0)}, {"a": shared, "b": shared})
    assert result["a"] is shared
    assert shared.tolist() == [0, 1, 2, 3, 4]


def test_conjugated_and_negated_views() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    result = carry({"conj": z.conj(), "imag": z.conj().imag})
    assert result["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert result["imag"].tolist() == [-2, 4]


def test_parameters_stay_parameters() -> None:
    result = carry({"w": torch.nn.Parameter(torch.ones(2)), "f": torch.nn.Parameter(torch.ones(2), False)})
    assert type(result["w"]) is torch.nn.Parameter
    assert result["w"].requires_grad
    assert not result["f"].requires_grad


def test_flatten_copies_no_tensor() -> None:
    t = torch.zeros(10)
    _, sources = flatten([t])
    sources[0].fill_(255)
    assert t.isnan().all()


class Scale:
    def __init__(self, factor: torch.Tensor) -> None:
        self.factor = factor


def test_registered_leaf_with_a_tensor_inside() -> None:
    register_leaf(Scale, lambda s: {"factor": s.factor}, lambda v: Scale(v["factor"]))
    result = carry({"s": Scale(torch.tensor([2.0]))})
    assert type(result["s"]) is Scale
    assert result["s"].factor.tolist() == [2.0]


def test_an_unregistered_leaf_is_named_at_the_receiver() -> None:
    register_leaf(Scale, lambda s: 1, lambda v: 1 / 0)
    with pytest.raises(TransferError, match=r"a/s.*Scale"):
        carry({"a": {"s": Scale(torch.ones(1))}})
    layout, _ = flatten({"a": {"s": Scale(torch.ones(1))}})
    del leaves._by_name["tests.torch.transfer.format.test_layout.Scale"], leaves._by_type[Scale]
    with pytest.raises(TransferError, match=r"a/s.*not registered"):
        find_targets(layout)


def manifest(**changes: Any) -> bytes:
    value = {
        "format": "torchft_x/2",
        "byteorder": "little",
        "blobs": [40],
        "tensors": [["float32", [10], [1], 0, 0]],
        "tree": ["dict", [["w", ["T", 0]]]],
    }
    return json.dumps({**value, **changes}).encode()


def receive(text: bytes) -> Layout:
    layout = parse(text)
    Landing(layout, find_targets(layout))
    return layout


def test_the_honest_manifest_is_accepted() -> None:
    assert receive(manifest()).blobs == (40,)


def deep(levels: int) -> bytes:
    return manifest(tree=None).replace(b'"tree": null', b'"tree": ' + b'["list", [' * levels + b"]]" * levels)


HOSTILE: dict[str, bytes] = {
    "not json": b"{",
    "not utf-8": b"\xff\xfe{}",
    "not an object": b"[]",
    "format": manifest(format="torchft_x/99"),
    "byte order": manifest(byteorder="big"),
    "no blobs": manifest(blobs=None),
    "negative blob": manifest(blobs=[-40]),
    "huge blob": manifest(blobs=[1 << 62], tensors=[["uint8", [1 << 62], [1], 0, 0]]),
    "huge sum": manifest(blobs=[1 << 43, 1 << 43]),
    "more than the machine has": manifest(blobs=[1 << 42], tensors=[["uint8", [1 << 42], [1], 0, 0]]),
    "blob larger than its tensors": manifest(blobs=[1 << 30]),
    "blob smaller than its tensors": manifest(blobs=[36]),
    "blob of nobody": manifest(blobs=[40, 1 << 20]),
    "blob as bool": manifest(blobs=[True]),
    "unknown dtype": manifest(tensors=[["object", [10], [1], 0, 0]]),
    "quantised dtype": manifest(tensors=[["qint8", [40], [1], 0, 0]]),
    "negative shape": manifest(tensors=[["float32", [-10], [1], 0, 0]]),
    "float shape": manifest(tensors=[["float32", [10.0], [1], 0, 0]]),
    "shape overflow": manifest(tensors=[["float32", [1 << 40, 1 << 40], [0, 0], 0, 36]]),
    "negative stride": manifest(tensors=[["float32", [10], [-1], 0, 0]]),
    "negative offset": manifest(tensors=[["float32", [10], [1], 0, -4]]),
    "misaligned offset": manifest(blobs=[42], tensors=[["float32", [10], [1], 0, 2]]),
    "beyond the blob": manifest(tensors=[["float32", [10], [2], 0, 0]]),
    "strides of other length": manifest(tensors=[["float32", [10], [], 0, 0]]),
    "too many dimensions": manifest(tensors=[["float32", [1] * 65, [1] * 65, 0, 0]]),
    "blob index": manifest(tensors=[["float32", [10], [1], 7, 0]]),
    "blob index as text": manifest(tensors=[["float32", [10], [1], "0", 0]]),
    "empty tensor with a blob": manifest(tensors=[["float32", [0], [1], 0, 0]]),
    "short row": manifest(tensors=[["float32"]]),
    "row as text": manifest(tensors=["float32"]),
    "tensor used twice": manifest(tree=["list", [["T", 0], ["T", 0]]]),
    "tensor not used": manifest(tree=["list", []]),
    "tensor index": manifest(tree=["T", 5]),
    "tensor index as bool": manifest(tree=["T", False]),
    "parameter without flag": manifest(tree=["P", 0]),
    "integer parameter with gradient": manifest(tensors=[["int32", [10], [1], 0, 0]], tree=["P", 0, True]),
    "dtensor from nowhere": manifest(tree=["D", 0, ["Shard(dim=0)"], [10]]),
    "broken dtensor": manifest(tree=["D", 0, [1], [10]]),
    "dict of no pairs": manifest(tree=["dict", [["w"]]]),
    "dict of text": manifest(tree=["dict", "w"]),
    "dict with a key twice": manifest(tree=["dict", [["w", ["T", 0]], ["w", 1]]]),
    "list key": manifest(tree=["dict", [[["list", []], ["T", 0]]]]),
    "odict without metadata": manifest(tree=["odict", []]),
    "set of lists": manifest(tree=["set", [["list", []]]]),
    "leaf without name": manifest(tree=["leaf", 5, None]),
    "unknown leaf": manifest(tree=["leaf", "os.system", "true"]),
    "unknown tag": manifest(tree=["exec", "1"]),
    "bare object": manifest(tree={"w": 1}),
    "a float": manifest(tree=1.5),
    "a number of many digits": manifest(tree=None).replace(b"null", b"9" * 5000),
    "nested over our limit": deep(limits.MAX_DEPTH + 2),
    "nested over python's limit": deep(100_000),
    "nested key": manifest(tree=["set", [json.loads('["ktuple",[' * 80 + "]]" * 80)]]),
    **{
        f"a thousand {kind} with one hash": manifest(tree=[kind, values])
        for kind, values in {
            "dict": [[["int", hex(((1 << 61) - 1) * (k + (1 << 60)))], None] for k in range(1000)],
            "set": [["int", hex(((1 << 61) - 1) * (k + (1 << 60)))] for k in range(1000)],
            "fset": [["ktuple", [["int", hex(((1 << 61) - 1) * k)]]] for k in range(1000)],
        }.items()
    },
    "too large": b" " * (limits.MAX_MANIFEST_BYTES + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests_are_transfer_errors(name: str) -> None:
    with pytest.raises(TransferError):
        receive(HOSTILE[name])


def test_keys_that_share_a_hash_are_named() -> None:
    """S9: a megabyte of them cost 103 s."""
    with pytest.raises(TransferError, match="more than 64 keys with the same hash"):
        receive(HOSTILE["a thousand dict with one hash"])
    honest = {i: i for i in range(5000)} | {float(i): 0 for i in range(-3, 3)} | {(i, "w"): 0 for i in range(100)}
    assert carry({"s": honest, "t": set(honest)}) == {"s": honest, "t": set(honest)}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.sampled_from(["T", "dict", "float32", "x"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@quick
@given(st.sampled_from(["blobs", "tensors", "tree"]), json_values)
def test_random_manifests_never_crash(field: str, value: Any) -> None:
    try:
        receive(manifest(**{field: value}))
    except TransferError:
        pass
