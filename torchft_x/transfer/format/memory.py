"""Views and memoryviews of tensors' bytes, without copies and numpy. Also suspends Python's garbage collection."""

from __future__ import annotations

import ctypes
import functools
import gc
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
if _libc is not None:
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def view_storage(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Return a tensor of any dtype over `storage`, starting `offset` bytes in (a multiple of the item size)."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset // dtype.itemsize, shape, stride)


def view_bytes(storage: torch.UntypedStorage, offset: int, nbytes: int) -> Tensor:
    """Return a uint8 tensor (nbytes,) over a part of `storage`."""
    return view_storage(storage, torch.uint8, offset, (nbytes,), (1,))


def as_words(tensor: Tensor) -> Tensor:
    """Return the same memory as integers (16 bytes: complex128): torch can't copy some of its own dtypes."""
    width = _SAME_WIDTH[tensor.dtype.itemsize]
    storage = tensor.untyped_storage()
    return view_storage(storage, width, storage_offset_bytes(tensor), tensor.shape, tensor.stride())


def memory_of(data: Tensor) -> memoryview:
    """Return a writable memoryview of a contiguous, non-empty uint8 CPU tensor. The view keeps the tensor alive."""
    array = (ctypes.c_char * data.numel()).from_address(data.data_ptr())
    array.owner = data  # the view refers to `array` only, so `array` must keep the tensor
    return memoryview(array).cast("B")


def allocate(nbytes: int, *, pinned: bool = False) -> Tensor:
    """Return an uninitialised uint8 CPU tensor (nbytes,). `pinned`: page-locked, for copies from an accelerator.

    The system chooses the size of its pages. A virtual machine that gives free memory back to its host (free page
    reporting) takes 2-4 s for a gigabyte of huge pages, and 0.4 s for small ones that were in use just before.
    """
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)


def populate(data: Tensor) -> bool:
    """Allocate the pages of a contiguous uint8 CPU tensor in one system call, without changing a byte.

    A page fault for each page while data arrives costs more, most of all in a virtual machine. Returns False if this
    system can't; then the first write allocates them.
    """
    first = -(-data.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE  # not the pages shared with other data
    end = (data.data_ptr() + data.numel()) // mmap.PAGESIZE * mmap.PAGESIZE
    return _libc is not None and (end <= first or _libc.madvise(first, end - first, _POPULATE_WRITE) == 0)


def physical_memory() -> int:
    """Return the bytes of RAM."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, as the system estimates."""
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return physical_memory()


def storage_offset_bytes(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.dtype.itemsize


def extent(shape: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Return the bytes from the first to the last element, both included; 0 for an empty tensor."""
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * step
    return (last + 1) * itemsize


def has_memory(tensor: Tensor) -> bool:
    """Return whether all elements of a tensor lie in memory that its storage holds, at its strides.

    Nested tensors have no strides, and functorch's have no storage. Tensors whose storage was freed or resized (FSDP1
    does that), functional tensors and autograd's zeros have addresses outside of any storage.
    """
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return False
    if tensor.is_nested or not torch._C._has_storage(tensor):
        return False
    nbytes = tensor.nbytes if tensor.is_contiguous() else extent(tensor.shape, tensor.stride(), tensor.dtype.itemsize)
    if not nbytes:
        return True
    inside = storage_offset_bytes(tensor) + nbytes <= tensor.untyped_storage().nbytes()
    return inside and tensor.data_ptr() != 0


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether the elements fill their extent without a hole. Expanded dimensions (stride 0) don't count."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1 and step):
        if step != expected:
            return False
        expected *= size
    return True


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(shape[i + 1], 1)
    return tuple(stride)


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it runs without collections of cyclic garbage.

    Python looks for cycles after a number of allocations, and walks through all live objects. For a state of 20,000
    tensors that was half of the time at both ends. Two threads at once do no harm: a thread that found
    collections enabled enables them again.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run
