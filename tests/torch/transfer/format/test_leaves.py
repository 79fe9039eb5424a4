from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchft_x.errors import ConfigError, LeafError, TransferError
from torchft_x.transfer import check_sendable, register_leaf
from torchft_x.transfer.format.leaves import decode_scalar, encode_scalar
from torchft_x.transfer.format.limits import MAX_INT_BITS, MAX_TEXT_BYTES


class Foo:
    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize("value", [Foo(1), Counter("ab"), range(3), bytearray(b"x"), 1j.__class__])
def test_a_leaf_that_cannot_be_sent_is_named_with_path_type_and_remedy(value: Any) -> None:
    state = {"user": {"default": {"optimizer": {"state": {0: {"foo": value}}}}}}
    with pytest.raises(LeafError) as caught:
        check_sendable(state)
    text = str(caught.value)
    assert "user/default/optimizer/state/0/foo" in text
    assert type(value).__name__ in text
    assert "register_leaf" in text
    assert isinstance(caught.value, TypeError)


def resized(nbytes: int) -> torch.Tensor:
    """A tensor of 12 bytes of which the storage holds `nbytes`."""
    t = torch.ones(3)
    t.untyped_storage().resize_(nbytes)
    return t


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (lambda: torch.nested.nested_tensor([]), "a nested tensor"),
        (lambda: resized(0), "without memory"),
        (lambda: resized(8), "without memory"),
        (lambda: torch._efficientzerotensor(3), "without memory"),
        (lambda: torch._to_functional_tensor(torch.ones(3)), "without memory"),
        (lambda: torch.zeros(2, 2).to_sparse(), ""),
        (lambda: torch.zeros(2, device="meta"), ""),
    ],
)
def test_a_tensor_that_cannot_be_read_is_named(make: Callable[[], torch.Tensor], what: str) -> None:
    """The first two were an internal error of torch's, the third, fifth and sixth ended the process with SIGSEGV."""
    with pytest.raises(LeafError, match=rf"a/b is .*{what}"):
        check_sendable({"a": {"b": make()}})


def test_a_tensor_of_a_transform_is_named() -> None:
    def send(t: torch.Tensor) -> torch.Tensor:
        check_sendable({"a": {"b": t}})
        return t

    with pytest.raises(LeafError, match="a/b"):
        torch.func.vmap(send)(torch.ones(2, 3))


@pytest.mark.parametrize(
    "state",
    [{"a": resized(0)[:0], "b": torch.empty(3, 0)}, {1 << 20000: {(1 << 20000,): 1}}],
    ids=["empty", "long key"],
)
def test_a_tensor_without_elements_or_memory_and_a_key_too_long_for_text_are_sendable(state: Any) -> None:
    check_sendable(state)


def test_a_bad_key_is_named() -> None:
    with pytest.raises(LeafError, match="Foo"):
        check_sendable({"a": {Foo(1): 1}})


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(LeafError, match="contain itself"):
        check_sendable(state)


@pytest.mark.parametrize(
    "value", [1 << MAX_INT_BITS, "x" * (MAX_TEXT_BYTES + 1), b"x" * (MAX_TEXT_BYTES + 1)], ids=["int", "str", "bytes"]
)
def test_a_scalar_over_its_cap_is_named(value: Any) -> None:
    with pytest.raises(LeafError, match=r"a/b.*at most"):
        check_sendable({"a": {"b": value}})


def test_int_at_the_cap() -> None:
    value = -((1 << MAX_INT_BITS) - 1)
    assert decode_scalar(encode_scalar(value)) == value


@pytest.mark.parametrize(
    "node",
    [
        ["int", "0x" + "f" * MAX_INT_BITS], ["int", 5], ["int", "zz"], ["float", "00"], ["float", "zz"], ["bytes", "%%%"],
        ["str", "ff"], ["dtype", "qint8"], ["dtype", ["x"]], ["device", "nowhere"], ["size", [1] * 65], ["size", [1.5]],
        ["size", 3], ["what", 1], ["int"], [], [[]], {}, 1.5, 1 << 60, [["int"], 1],
    ],
)  # fmt: skip
def test_hostile_scalars_are_transfer_errors(node: Any) -> None:
    with pytest.raises(TransferError):
        decode_scalar(node)


def test_register_leaf_refuses_types_that_are_sent_anyway() -> None:
    for kind in (int, dict, torch.Tensor, torch.nn.Parameter):
        with pytest.raises(ConfigError, match="as they are"):
            register_leaf(kind, lambda v: v, lambda v: v)


def test_register_leaf_refuses_a_name_twice_and_accepts_a_redefinition() -> None:
    class First: ...

    class Second: ...

    register_leaf(First, lambda v: 1, lambda v: First(), name="tests.taken")
    register_leaf(First, lambda v: 2, lambda v: First(), name="tests.taken")
    with pytest.raises(ConfigError, match=r"tests\.taken"):
        register_leaf(Second, lambda v: 1, lambda v: Second(), name="tests.taken")
