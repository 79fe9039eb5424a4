"""Enums, dataclasses, named tuples, defaultdicts, numpy and generators' states: without `register_leaf`, by our own types."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.torch.transfer.format.test_layout import carry
from torchft_x.errors import LeafError, TransferError
from torchft_x.transfer.format import leaves, structured
from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.format.layout import parse
from torchft_x.transfer.format.rebuild import find_targets, rebuild


class Phase(Enum):
    WARM = "warm"
    TRAIN = object()


class Level(IntEnum):
    LOW = 1


class Way(Flag):
    UP = 1
    DOWN = 2


Pair = namedtuple("Pair", "first second")  # the old form, too


class Point(NamedTuple):
    x: float
    t: torch.Tensor


@dataclass
class Progress:
    epoch: int
    seen: list[int] = field(default_factory=list)
    weights: torch.Tensor | None = None

    def __post_init__(self) -> None:
        created.append(self.epoch)


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str


created: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Each test meets its types anew, as a process does."""
    before = dict(leaves._by_type), dict(leaves._by_name), set(leaves._met), dict(structured._met)
    yield
    for now, then in zip((leaves._by_type, leaves._by_name, leaves._met, structured._met), before, strict=True):
        now.clear()  # type: ignore[attr-defined]
        now.update(then)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        Phase.TRAIN, Level.LOW, Way.UP, Frozen("a"), Pair(1, (2, Level.LOW)), [Phase.WARM, {"p": Pair(None, "x")}],
        np.float32(0.1), np.int64(-5), np.bool_(True), np.datetime64("2026-01-02"), np.str_("abc"),
    ],
    ids=str,
)  # fmt: skip
def test_it_arrives_as_it_was(value: Any) -> None:
    came = carry({"v": value})["v"]
    assert came == value
    assert type(came) is type(value)


def test_what_is_inside_travels_too_and_no_code_of_the_class_runs() -> None:
    made = Progress(3, [1, 2], torch.arange(4.0))
    created.clear()
    came = carry({"p": made, "q": Point(0.5, torch.ones(2))})
    assert created == []
    assert (came["p"].epoch, came["p"].seen) == (3, [1, 2])
    assert torch.equal(came["p"].weights, made.weights)
    assert type(came["q"]) is Point
    assert came["q"].t.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["bool", "i1", "u2", "i8", "f2", "f4", "f8", "c16", "M8[us]", "U5", "S3", ">i4"])
def test_numpy_arrays(dtype: str) -> None:
    plain = np.arange(12).reshape(3, 4)
    array = plain.astype("i8").astype(dtype) if dtype != "M8[us]" else plain.astype("M8[us]")
    for value in (array, array.T, array[::2, ::-1], array[:0], np.array(array[1, 2])):
        came = carry({"a": value})["a"]
        assert type(came) is np.ndarray
        assert (came.dtype, came.shape) == (value.dtype, value.shape)
        assert came.tobytes() == value.tobytes()
        assert came.flags.writeable


def test_a_read_only_array_is_sent_without_a_word() -> None:
    readonly = np.ones(3)
    readonly.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert carry([readonly])[0].tolist() == [1, 1, 1]


def test_states_of_generators() -> None:
    generator = np.random.default_rng(3)
    state = {
        "torch": torch.get_rng_state(),
        "python": random.Random(4).getstate(),
        "numpy": np.random.RandomState(5).get_state(),
        "old": np.random.RandomState(5).get_state(legacy=False),
        "new": generator.bit_generator.state,
    }
    came = carry(state)
    torch.set_rng_state(came["torch"])
    again = random.Random()
    again.setstate(came["python"])
    assert again.random() == random.Random(4).random()
    for name in ("numpy", "old"):
        previous = np.random.RandomState()
        previous.set_state(came[name])
        assert previous.randint(1 << 30) == np.random.RandomState(5).randint(1 << 30)
    other = np.random.default_rng()
    other.bit_generator.state = came["new"]
    assert other.random() == np.random.default_rng(3).random()


def by_hand() -> int:
    return 7


@pytest.mark.parametrize("factory", [None, int, list, dict, by_hand, lambda: 5])
def test_a_defaultdict_keeps_its_factory(factory: Any) -> None:
    came = carry({"d": defaultdict(factory, {"a": torch.ones(2), (1, "k"): 3})})["d"]
    assert type(came) is defaultdict
    assert came.default_factory is factory
    assert came[1, "k"] == 3


# --- what comes from the network names nothing but our own types --------------------------------------------------------


def arrives(tree: str, into: Any = None) -> Any:
    text = f'{{"format":"torchft_x/2","byteorder":"little","blobs":[],"tensors":[],"tree":{tree}}}'
    layout = parse(text.encode())
    return rebuild(layout, find_targets(layout, into), [])


def test_a_type_that_pid_of_has_not_met_is_refused() -> None:
    name = f"{__name__}.Phase"
    tree = f'["dict",[["v",["leaf","{name}","WARM"]]]]'
    with pytest.raises(TransferError, match=r"v is a .*Phase.*not registered in this process"):
        arrives(tree)
    assert arrives(tree, into={"v": Phase.TRAIN}) == {"v": Phase.WARM}  # by the state it is received into
    check_sendable({"other": Phase.TRAIN})
    assert arrives(tree) == {"v": Phase.WARM}  # or since it has met it in its own


@pytest.mark.parametrize("name", ["subprocess.Popen", "os.system", "builtins.eval", "numpy.memmap", "decimal.Decimal"])
def test_nothing_is_imported_or_called_by_name(name: str) -> None:
    with pytest.raises(TransferError, match="not registered"):
        arrives(f'["leaf","{name}",["list",["x"]]]')
    with pytest.raises(TransferError, match="defaultdict of"):
        arrives(f'["ddict","{name}",["dict",[]]]')


def test_a_factory_counts_at_its_own_place_only() -> None:
    check_sendable({"a": defaultdict(by_hand)})
    assert arrives('["dict",[["a",["ddict","by_hand",["dict",[]]]]]]')["a"][0] == 7
    with pytest.raises(TransferError, match="that place"):
        arrives('["dict",[["b",["ddict","by_hand",["dict",[]]]]]]')


@pytest.mark.parametrize(
    "inner", ['"NONE"', '"__class__"', "3", '["dict",[]]', '["list",[1,2]]', '["dict",[["epoch",1],["more",2]]]']
)
@pytest.mark.parametrize("kind", [Phase, Frozen, Point, Progress])
def test_broken_values_of_our_types_are_transfer_errors(kind: type, inner: str) -> None:
    leaves.leaf_of_type(kind)
    if kind is Point and inner == '["list",[1,2]]':
        inner = '["list",[1]]'
    with pytest.raises(TransferError):
        arrives(f'["leaf","{__name__}.{kind.__name__}",{inner}]')


@pytest.mark.parametrize(
    "inner",
    [
        '["tuple",["<f4",["size",[2]],["bytes","AAAA"]]]',
        '["tuple",["|O8",["bytes","AAAAAAAAAAA="]]]',
        '["tuple",["<f4",["bytes","AAAA"]]]',
        '["tuple",["<f4,<f4",["bytes","AAAAAAAAAAA="]]]',
        '["tuple",["<U999999999",["bytes",""]]]',
        '"x"',
        "null",
    ],
)
@pytest.mark.parametrize("name", ["numpy.ndarray", "numpy.generic"])
def test_broken_arrays_are_transfer_errors(name: str, inner: str) -> None:
    with pytest.raises(TransferError):
        arrives(f'["leaf","{name}",{inner}]')


class Odd(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array([object()]), "dtype object"),
        (np.zeros(2, dtype="f4,f4"), "dtype"),
        (Way.UP | Way.DOWN, "no single member"),
        (defaultdict(Odd().get), ""),
        (dataclass(type("Sub", (dict,), {}))(), "register_leaf"),
    ],
)
def test_what_would_lose_something_is_refused_with_its_path(value: Any, why: str) -> None:
    if isinstance(value, defaultdict):
        value.default_factory = type("Nameless", (), {"__call__": lambda self: 1})()
        why = "has no name"
    with pytest.raises(LeafError, match=rf"a/b.*{why}"):
        check_sendable({"a": {"b": value}})


def test_attributes_that_are_no_fields_are_named() -> None:
    made = Progress(1)
    made.more = 3  # type: ignore[attr-defined]
    with pytest.raises(LeafError, match=r"p: a Progress with 'more'"):
        check_sendable({"p": made})
    del made.more, made.seen  # type: ignore[attr-defined]
    with pytest.raises(LeafError, match=r"p: a Progress whose field 'seen'"):
        check_sendable({"p": made})


def test_a_registered_leaf_comes_first() -> None:
    leaves.register_leaf(Frozen, lambda v: v.name.upper(), lambda v: Frozen(v + "!"))
    assert carry([Frozen("a")]) == [Frozen("A!")]
