"""Fewer bits per value: blocks of values as small codes with one scale each, in one flat byte buffer.

A value is ``code * scale of its block``. The scale is the block's largest magnitude over the largest code, as a
bfloat16 rounded *up*. So no code is clipped, and the product of a code and a scale fits a float32 exactly. Decoding
therefore gives the same bits on every machine and kind of device, and the quantisation error (`residual`) is known
exactly.

Buffer of n values in blocks of B: ceil(n/B) scales (bfloat16, little-endian as every machine torch runs on), the
codes in order, one byte more if the sum is odd. Nothing is padded to whole blocks, so small tensors aren't inflated.

======  =====  ==================  ==============================  =====================================
format  block  bytes, of float32   codes                           error of a value in a block of max m
======  =====  ==================  ==============================  =====================================
int8    128    130/512 = 0.254     -127..127                       m * 0.004
int4    64     34/256  = 0.133     -7..7, two in a byte            m * 0.072
fp8     128    130/512 = 0.254     float8_e4m3fn, up to 448        value / 16, or m / 200,000 if greater
======  =====  ==================  ==============================  =====================================

The error is an upper bound. Codes are rounded to nearest, ties to even. Stochastic rounding would have twice the
largest error and would not give the same bytes for the same input. Error feedback removes the bias of rounding to
nearest.

A block that holds a NaN or an infinity, or a value so near float32's largest (1 %) that it would be decoded as
infinity, gets the scale NaN. All its values are decoded as NaN, so that every member sees a broken gradient. Blocks
whose largest value is below 1e-36 lose precision, down to zeros.

One scale per block is taken from QSGD and block floating point (Alistarh et al. 2017; Dettmers 2015). torchft has one
scale per row of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchft_x.errors import ConfigError

_TINY = 2.0**-126  # the smallest scale: below it float32 and bfloat16 lose bits
_STEP_CPU = 1 << 16  # values per pass on the CPU: 256 KiB of float32, so that the passes of a step stay in the cache
_STEP_DEVICE = 1 << 26  # values per pass on a device, where a launch costs more than a pass
_FP8_CAPABILITY = (8, 9)  # CUDA: the first compute capability with float8_e4m3fn in hardware


@dataclass(frozen=True, slots=True)
class Format:
    """Encoding of values. Steps and parts of a buffer begin at multiples of `block` values."""

    name: str
    bits: int  # bits of a code
    block: int  # values that share a scale
    max_code: float

    def nbytes(self, numel: int) -> int:
        """Return the bytes of the buffer that holds `numel` values; an even number."""
        raw = 2 * self.num_blocks(numel) + self.code_bytes(numel)
        return raw + raw % 2

    def num_blocks(self, numel: int) -> int:
        return -(-numel // self.block)

    def code_bytes(self, numel: int) -> int:
        return -(-numel * self.bits // 8)

    def __str__(self) -> str:
        return self.name


INT8 = Format("int8", bits=8, block=128, max_code=127.0)
INT4 = Format("int4", bits=4, block=64, max_code=7.0)
FP8 = Format("fp8", bits=8, block=128, max_code=448.0)
FORMATS = {f.name: f for f in (INT8, INT4, FP8)}


def format_of(should_quantize: bool | str | None) -> Format | None:
    """Return the format that is requested; None means full precision.

    True means int8 on every machine (torchft chooses by the chip, so that different machines can't train together).
    Raises `ConfigError` for an unknown name.
    """
    if should_quantize is None or should_quantize is False or should_quantize == "none":
        return None
    name = "int8" if should_quantize is True else should_quantize
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"should_quantize={should_quantize!r} is not True, False, {', '.join(map(repr, FORMATS))}.")
    return FORMATS[name]


def check(tensor: Tensor, fmt: Format) -> None:
    """Raise `ConfigError` if `tensor` can't be reduced in this format on its device."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ConfigError(f"{tensor.dtype} can't be quantised, only floating point can; leave should_quantize out.")
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a {tensor.layout} tensor can't be quantised, only dense ones can.")
    if fmt is FP8 and not has_fp8(tensor.device):
        raise ConfigError(
            f"fp8 needs a CUDA device of compute capability 8.9 or newer in every group, and this tensor is on "
            f"{tensor.device}; ask for int8, which takes as many bytes."
        )


def has_fp8(device: torch.device) -> bool:
    """Return whether the chip converts float8 in hardware."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY


def encode(x: Tensor, fmt: Format, out: Tensor | None = None, *, lost: Tensor | None = None) -> Tensor:
    """Return a tensor encoded as a buffer (uint8, `Format.nbytes`).

    Args:
        x: flat, contiguous, floating; float64 is rounded to float32 first.
        fmt: the buffer's format.
        out: a flat buffer to write to, which begins at an even byte of its storage.
        lost: flat float32 of as many values. `residual` is added to it, computed from codes that are still in the
            cache.
    """
    numel = x.numel()
    if out is None:
        out = torch.empty(fmt.nbytes(numel), dtype=torch.uint8, device=x.device)
    scales, codes = _parts(out, numel, fmt)
    if out.numel() > scales.nbytes + codes.numel():
        out[-1:].zero_()  # every byte of a buffer is determined
    for first, rows, width in _steps(numel, fmt, x.device):
        values = x[first : first + rows * width].view(rows, width).float()
        b, c = first // fmt.block, fmt.code_bytes(first)
        work = values.abs()
        scale = _scale(work.amax(1), fmt)
        scales[b : b + rows].copy_(scale)  # exact: it is a bfloat16 already
        torch.div(values, scale.unsqueeze(1), out=work)
        written = codes[c : c + rows * fmt.code_bytes(width)].view(rows, -1)
        _write_codes(work, fmt, written)
        if lost is not None:
            # Int8 and int4: the codes as they were rounded.
            sent = _read_codes(written, fmt, width) if fmt is FP8 else work
            # A code times a scale is exact, so these are the bits that decoding and subtracting give.
            torch.addcmul(values, sent, scale.unsqueeze(1), value=-1, out=work)
            lost[first : first + rows * width].view(rows, width).add_(work)
    return out


def decode(buffer: Tensor, numel: int, fmt: Format, out: Tensor | None = None, *, add: bool = False) -> Tensor:
    """Return the `numel` values of a buffer as flat float32. `out` is overwritten, or with `add` added to."""
    if out is None:
        out = torch.zeros(numel, dtype=torch.float32, device=buffer.device)
    scales, codes = _parts(buffer, numel, fmt)
    for first, rows, width in _steps(numel, fmt, buffer.device):
        b, c = first // fmt.block, fmt.code_bytes(first)
        values = _read_codes(codes[c : c + rows * fmt.code_bytes(width)].view(rows, -1), fmt, width)
        scale = scales[b : b + rows].float().unsqueeze(1)
        target = out[first : first + rows * width].view(rows, width)
        if add:
            target.addcmul_(values, scale)
        else:
            torch.mul(values, scale, out=target)
    return out


def residual(x: Tensor, fmt: Format) -> Tensor:
    """Return the quantisation error ``x - decode(encode(x))`` of a flat tensor, as float32, for error feedback.

    It is bit for bit what a reduction in this format omits. NaN where a block isn't finite.
    """
    lost = torch.zeros(x.numel(), dtype=torch.float32, device=x.device)
    encode(x, fmt, lost=lost)
    return lost


# --- private functions ------------------------------------------------------------------------------------------------


def _parts(buffer: Tensor, numel: int, fmt: Format) -> tuple[Tensor, Tensor]:
    """Return views of the buffer's scales (bfloat16) and of its codes (uint8)."""
    num_scales, num_codes = 2 * fmt.num_blocks(numel), fmt.code_bytes(numel)
    return buffer[:num_scales].view(torch.bfloat16), buffer[num_scales : num_scales + num_codes]


def _steps(numel: int, fmt: Format, device: torch.device) -> Iterator[tuple[int, int, int]]:
    """Yield (first value, rows, values in a row): many whole blocks at once, then the short last block alone."""
    whole = numel // fmt.block * fmt.block
    step = _STEP_CPU if device.type == "cpu" else _STEP_DEVICE
    for first in range(0, whole, step):
        yield first, min(step, whole - first) // fmt.block, fmt.block
    if whole < numel:
        yield whole, 1, numel - whole


def _scale(largest: Tensor, fmt: Format) -> Tensor:
    """Return the scales of rows with these largest magnitudes, as float32 that are exact in bfloat16.

    A scale is at least largest/max_code, and NaN where a row is not finite.
    """
    scale = (largest / fmt.max_code).clamp_(min=_TINY)
    bad = scale.isfinite().logical_not_()
    scale.view(torch.int32).add_(0xFFFF).bitwise_and_(-0x10000)  # the next bfloat16 that is no smaller
    bad |= (scale * fmt.max_code).isinf()
    return scale.masked_fill_(bad, float("nan"))


def _write_codes(q: Tensor, fmt: Format, codes: Tensor) -> None:
    """Write `q`, values in units of their scale, as codes. `q` is overwritten.

    NaN rows get arbitrary codes: their scale is NaN.
    """
    if fmt is FP8:
        codes.view(torch.float8_e4m3fn).copy_(q)
        return
    q.round_().nan_to_num_(0.0)
    if fmt is INT8:
        codes.view(torch.int8).copy_(q)
        return
    if q.shape[1] % 2:
        q = torch.nn.functional.pad(q, (0, 1))
    half = q.shape[1] // 2  # a row's first half in the low four bits, its second in the high ones: both contiguous
    codes.copy_(torch.add(q[:, :half], q[:, half:], alpha=16).add_(8 * 17))


def _read_codes(codes: Tensor, fmt: Format, width: int) -> Tensor:
    """Return the codes as float32, (rows, width)."""
    if fmt is FP8:
        return codes.view(torch.float8_e4m3fn).float()
    if fmt is INT8:
        return codes.view(torch.int8).float()
    values = torch.cat((codes & 15, codes >> 4), dim=1)[:, :width]
    return values.float().sub_(8.0)
