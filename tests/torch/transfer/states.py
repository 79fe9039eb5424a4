"""State dicts for tests: random ones, and the strictest comparison."""

from __future__ import annotations

import copy
import struct
from collections import OrderedDict
from typing import Any

import torch
from hypothesis import strategies as st

from torchft_x.transfer.format.leaves import DTYPES
from torchft_x.transfer.format.memory import memory_of

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def raw(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor in order, as bytes, for every dtype."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    width = _SAME_WIDTH[tensor.dtype.itemsize]
    same = torch.empty(0, dtype=width).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    flat = torch.empty(tensor.shape, dtype=width)
    flat.copy_(same)
    return bytes(memory_of(flat.reshape(-1).view(torch.uint8))) if flat.numel() else b""


def same(a: Any, b: Any) -> bool:
    """Return whether two states are equal in type, order and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict):
        return (
            len(a) == len(b)
            and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
            and same(getattr(a, "_metadata", None), getattr(b, "_metadata", None))
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        return {_bits(x) for x in a} == {_bits(x) for x in b}
    return bool(_bits(a) == _bits(b))


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, complex):
        return ("complex", struct.pack(">dd", value.real, value.imag))
    if isinstance(value, tuple):
        return tuple(_bits(v) for v in value)
    return (type(value), value)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    offset = draw(st.integers(0, 3))
    numel = 1
    for size in shape:
        numel *= size
    storage = bytearray(draw(st.binary(min_size=64, max_size=64))) * (-(-(numel + offset) * 16 // 64) + 1)
    base = torch.frombuffer(storage, dtype=torch.uint8).clone().untyped_storage()
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(shape[i + 1], 1)
    tensor = torch.empty(0, dtype=dtype).set_(base, offset, shape, stride)
    change = draw(st.sampled_from(["none", "transposed", "expanded", "stepped", "parameter"]))
    if change == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif change == "expanded":
        tensor = tensor.unsqueeze(0).expand(3, *shape)
    elif change == "stepped" and tensor.dim():
        tensor = tensor[..., ::2]
    elif change == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor


hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)
# Text includes lone surrogates, which JSON alone would change.
texts = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud83d\ude00", "\x00", "a/b"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 300), 1 << 300)
    | st.floats()
    | st.integers(0, 2**64 - 1).map(lambda n: struct.unpack(">d", n.to_bytes(8, "big"))[0])  # nans with a payload
    | st.complex_numbers()
    | texts
    | st.binary(max_size=20)
    | st.sampled_from(sorted(DTYPES.values(), key=str))
    | st.sampled_from([torch.device("cpu"), torch.device("cuda", 1)])
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
)
states = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4).map(OrderedDict)
        | st.sets(hashables, max_size=4)
        | st.frozensets(hashables, max_size=4)
    ),
    max_leaves=12,
)


def training_state() -> dict[str, Any]:
    """Return a small model after one AdamW step, with tied weights, in the form that a Manager sends."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400), torch.nn.Linear(400, 300))
    model[0].also = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    return {
        "user": {"default": {"model": model.state_dict(), "optimizer": optimizer.state_dict()}},
        "torchft": {"step": 5, "batches_committed": 10},
    }


def zeroed(state: Any) -> Any:
    """Return a copy with the same structure and sharing, and every tensor zero."""
    twin = copy.deepcopy(state)

    def clear(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value.detach().zero_()
        elif isinstance(value, dict):
            for v in value.values():
                clear(v)

    clear(twin)
    return twin
