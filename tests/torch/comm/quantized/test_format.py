"""The codec against a reference in plain Python, and what it promises, for any values."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchft_x.comm.quantized import format
from torchft_x.comm.quantized.format import FORMATS, FP8, INT4, INT8, Format, decode, encode, format_of, residual
from torchft_x.core import types
from torchft_x.errors import ConfigError

LARGE = 2.0**127  # within 1 % of the largest float32, twice this, a value may arrive as infinity
formats = pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
INTEGERS = (INT8, INT4)
ALL_BITS = torch.tensor([-1, 5], dtype=torch.int32).view(torch.float32)  # a NaN with all bits set, and a number


# --- a reference: one value at a time -----------------------------------------------------------------------------------


def bf16_up(x: float) -> float:
    """The smallest bfloat16 that is no smaller than x > 0."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0xFFFF) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def f32(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def reference(values: list[float], fmt: Format) -> tuple[bytes, list[float]]:
    """The buffer, and what it decodes to, of finite values in an integer format."""
    scales, codes, decoded = b"", b"", []
    for first in range(0, len(values), fmt.block):
        block = values[first : first + fmt.block]
        scale = bf16_up(max(f32(max(map(abs, block)) / fmt.max_code), 2.0**-126))
        scales += struct.pack("<f", scale)[2:]
        # Python's round goes to even as well; the quotient is a float32
        q = [round(f32(v / scale)) for v in block]
        decoded += [c * scale for c in q]
        if fmt is INT8:
            codes += struct.pack(f"<{len(q)}b", *q)
        else:
            q += [0] * (len(q) % 2)
            half = len(q) // 2
            codes += bytes((low + 8) | (high + 8) << 4 for low, high in zip(q[:half], q[half:], strict=True))
    raw = scales + codes
    return raw + b"\0" * (len(raw) % 2), decoded


@st.composite
def tensors(draw: st.DrawFn, *, finite: bool = True) -> torch.Tensor:
    """Up to 300 values: blocks of very different sizes, zeros, ties, and single outliers."""
    width = draw(st.sampled_from([16, 32]))
    bound = LARGE if width == 32 else 2.0**15
    number = st.floats(-bound, bound, width=width, allow_nan=not finite, allow_infinity=None if not finite else False)
    if not finite:
        number = st.floats(width=32)
    few = draw(st.lists(number, min_size=1, max_size=8))
    index = draw(st.lists(st.integers(0, len(few) - 1), max_size=300))
    return torch.tensor([few[i] for i in index], dtype=torch.float32)


@given(tensors(), st.sampled_from(INTEGERS))
@settings(max_examples=150)
@example(torch.tensor([0.5, 1.5, 2.5, 127.0]), INT8)  # ties go to even
@example(torch.tensor([1e-45] * 65), INT4)
def test_bytes_and_values_are_those_of_the_reference(x: torch.Tensor, fmt: Format) -> None:
    buffer = encode(x, fmt)
    want, decoded = reference(x.tolist(), fmt)
    assert bytes(buffer.tolist()) == want
    assert decode(buffer, x.numel(), fmt).tolist() == decoded


@given(tensors(), st.sampled_from(list(FORMATS.values())))
@settings(max_examples=150)
def test_the_error_of_each_value_is_bounded_by_its_block(x: torch.Tensor, fmt: Format) -> None:
    lost = residual(x, fmt).double().abs()
    for first in range(0, x.numel(), fmt.block):
        block, errors = x[first : first + fmt.block].double().abs(), lost[first : first + fmt.block]
        share = {"int8": 0.00398, "int4": 0.072, "fp8": 1 / 200_000}[fmt.name]
        bound = torch.maximum(block / 16 if fmt is FP8 else torch.zeros_like(block), block.max() * share)
        assert (errors <= bound * (1 + 1e-6) + 2.0**-126).all()


@given(tensors(finite=False), st.sampled_from(list(FORMATS.values())))
@settings(max_examples=150)
@example(torch.tensor([3.4026e38]), INT8)
@example(ALL_BITS, INT8)
@example(ALL_BITS, INT4)
@example(ALL_BITS, FP8)
def test_a_block_that_is_not_finite_arrives_as_nan_and_the_others_as_ever(x: torch.Tensor, fmt: Format) -> None:
    got = decode(encode(x, fmt), x.numel(), fmt)
    for first in range(0, x.numel(), fmt.block):
        block, there = x[first : first + fmt.block], got[first : first + fmt.block]
        if block.isfinite().all():
            alone = decode(encode(block, fmt), block.numel(), fmt)
            assert torch.equal(there.view(torch.int32), alone.view(torch.int32))  # NaN, if it is near float32's largest
        else:
            assert there.isnan().all()


@formats
@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, (1 << 16) + 129])
def test_sizes_are_exact_and_nothing_is_inflated(fmt: Format, n: int) -> None:
    blocks = math.ceil(n / fmt.block)
    size = 2 * blocks + (n if fmt.bits == 8 else math.ceil(n / 2))
    size += size % 2
    assert encode(torch.randn(n), fmt).numel() == fmt.nbytes(n) == size
    assert size <= max(4 * n, 4)
    if n > 128:
        assert size <= (0.26 if fmt.bits == 8 else 0.14) * 4 * n


@formats
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_read_as_float32(fmt: Format, dtype: torch.dtype) -> None:
    x = torch.randn(500, dtype=torch.float32).to(dtype)
    assert torch.equal(encode(x, fmt), encode(x.float(), fmt))


@formats
def test_parts_of_whole_blocks_are_encoded_alike_wherever_they_stand(fmt: Format) -> None:
    """So that shares, chunks and `residual` agree."""
    n = (1 << 16) + 3 * fmt.block + 17
    x = torch.randn(n)
    whole = decode(encode(x, fmt), n, fmt)
    for a, b in ((0, fmt.block), (fmt.block, n), (5 * fmt.block, 9 * fmt.block)):
        assert torch.equal(decode(encode(x[a:b], fmt), b - a, fmt), whole[a:b])
    assert torch.equal(residual(x, fmt), x - whole)


@formats
def test_in_place_forms(fmt: Format) -> None:
    x = torch.randn(200)
    place = torch.full((2 * fmt.nbytes(200),), 7, dtype=torch.uint8)
    encode(x, fmt, place[fmt.nbytes(200) :])
    assert (place[: fmt.nbytes(200)] == 7).all()
    assert torch.equal(place[fmt.nbytes(200) :], encode(x, fmt))
    total = torch.ones(200)
    decode(encode(x, fmt), 200, fmt, total, add=True)
    assert torch.equal(total, 1 + decode(encode(x, fmt), 200, fmt))


def test_names_of_formats() -> None:
    assert format_of(True) is INT8
    assert {format_of(off) for off in (None, False, "none")} == {None}
    assert [format_of(name) for name in FORMATS] == list(FORMATS.values())
    assert tuple(FORMATS) == types.FORMATS
    for wrong in ("int7", "INT8", 1, 8):
        with pytest.raises(ConfigError, match="should_quantize"):
            format_of(wrong)  # type: ignore[arg-type]


def test_what_is_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compute capability 8\.9.*cpu.*int8"):
        format.check(torch.ones(1), FP8)
    with pytest.raises(ConfigError, match=r"torch\.int64 can't be quantised"):
        format.check(torch.ones(1, dtype=torch.int64), INT8)
    with pytest.raises(ConfigError, match="only dense"):
        format.check(torch.ones(2).to_sparse(), INT8)


@formats
@settings(deadline=None, max_examples=50)
@given(x=tensors(finite=False))
@example(x=torch.tensor([3.3962e38]))  # its scale is rounded up: a value beyond float32
def test_what_is_left_out_is_added_while_it_is_written(fmt: Format, x: torch.Tensor) -> None:
    """Bit for bit what decoding and subtracting give, broken blocks included."""
    lost = torch.zeros(x.numel())
    assert torch.equal(encode(x, fmt, lost=lost), encode(x, fmt))
    want = x.float() - decode(encode(x, fmt), x.numel(), fmt)
    assert torch.equal(lost.nan_to_num(1.0), want.nan_to_num(1.0))
    assert torch.equal(lost.isnan(), want.isnan())
    once = lost.clone()
    encode(x, fmt, lost=lost)
    assert torch.equal(lost.nan_to_num(1.0), (once + once).nan_to_num(1.0))
