"""The memory that receives a fetch: the caller's own tensors where they fit, else new memory."""

from __future__ import annotations

import torch
from torch import Tensor

from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import Block
from torchft_x.transfer.format.layout import Layout, TensorSpec
from torchft_x.transfer.format.memory import (
    allocate,
    as_words,
    has_memory,
    is_dense,
    memory_of,
    physical_memory,
    storage_offset_bytes,
    uncollected,
    view_bytes,
    view_storage,
)
from torchft_x.transfer.format.rebuild import Target


class Landing:
    """Memory for every blob of a layout.

    A blob lands *in place* when a target has exactly its memory layout. `finish` fills a target that fits by dtype
    and shape only, from new memory or from the blob's first target. Such a target has other strides, or the source's
    tensors share memory and ours don't.
    """

    @uncollected
    def __init__(self, layout: Layout, targets: list[Target]) -> None:
        self.memory: list[Tensor] = []  # per blob: uint8 (bytes,), on the target's device
        self.in_place: list[bool] = []  # per blob: whether its memory is the caller's
        self._specs = layout.tensors
        self._targets = targets
        self._views: dict[int, memoryview] = {}
        direct = self._direct = _direct_targets(layout, targets)
        fresh = sum(size for blob, size in enumerate(layout.blobs) if blob not in direct)
        if fresh > physical_memory():  # a manifest's sizes are checked before any memory is allocated
            raise TransferError(
                f"the state needs {fresh} bytes of new memory, this machine has {physical_memory()}; "
                "receive it in place (into=...)."
            )
        for blob, size in enumerate(layout.blobs):
            self.in_place.append(blob in direct)
            self.memory.append(_bytes_of(direct[blob], size) if blob in direct else _allocate(size))

    def view(self, blob: int) -> memoryview | None:
        """Return the memory of a blob on the CPU, or None if it is on a device. From any thread."""
        found = self._views.get(blob)
        if found is None and self.memory[blob].device.type == "cpu":
            found = self._views[blob] = memory_of(self.memory[blob])
        return found

    @torch.no_grad()
    def put(self, block: Block, data: Tensor) -> None:
        """Copy a block's bytes to their places."""
        for p in block.pieces:
            arrived = data[p.block_offset : p.block_offset + p.nbytes]
            self.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes].copy_(arrived)

    @uncollected
    @torch.no_grad()
    def finish(self) -> list[Tensor]:
        """Return one tensor per spec, the target's own where it fits. Call it once every blob has arrived."""
        result: list[Tensor] = []
        for spec, target in zip(self._specs, self._targets, strict=True):
            local = target.local
            if local is not None and spec.blob is not None and self._direct.get(spec.blob) is local:
                result.append(local)  # it landed there
                continue
            arrived = self._view(spec)
            if local is None or not _fits(spec, local):
                result.append(arrived)
                continue
            if local.data_ptr() != arrived.data_ptr() or not _same_stride(spec, local):
                _copy(local.detach(), arrived)
            result.append(local)
        return result

    @property
    def copies_into_targets(self) -> bool:
        """Whether `finish` writes to memory of the caller."""
        return any(
            target.local is not None and spec.blob is not None and not self.in_place[spec.blob]
            for spec, target in zip(self._specs, self._targets, strict=True)
        )

    def _view(self, spec: TensorSpec) -> Tensor:
        if spec.blob is None:
            return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
        memory = self.memory[spec.blob]
        offset = storage_offset_bytes(memory) + spec.offset
        return view_storage(memory.untyped_storage(), spec.dtype, offset, spec.shape, spec.stride)


def _direct_targets(layout: Layout, targets: list[Target]) -> dict[int, Tensor]:
    """Return, for each blob that can land in place, the tensor in which it lands. No two of them overlap."""
    direct: dict[int, Tensor] = {}
    for spec, target in zip(layout.tensors, targets, strict=True):
        if spec.blob is None or spec.blob in direct or target.local is None:
            continue
        if (
            _fills_blob(spec, layout.blobs[spec.blob])
            and _fits(spec, target.local)
            and _same_stride(spec, target.local)
        ):
            direct[spec.blob] = target.local
    # Two blobs may share memory here and not at the source. The second is copied later: never two writers.
    end: dict[torch.device, int] = {}
    for blob, local in sorted(direct.items(), key=lambda item: (item[1].data_ptr(), item[0])):
        if local.data_ptr() < end.get(local.device, 0):
            del direct[blob]
        else:
            end[local.device] = local.data_ptr() + layout.blobs[blob]
    return direct


def _fills_blob(spec: TensorSpec, size: int) -> bool:
    return spec.offset == 0 and spec.end == size and is_dense(spec.shape, spec.stride)


def _fits(spec: TensorSpec, local: Tensor) -> bool:
    """Return whether the tensor can hold the values: same dtype and shape, memory of its own for each element."""
    if not has_memory(local) or local.is_conj() or local.is_neg():
        return False
    if local.dtype != spec.dtype or local.shape != spec.shape:
        return False
    return _same_stride(spec, local) or not any(
        step == 0 and size > 1 for size, step in zip(local.shape, local.stride(), strict=True)
    )


def _same_stride(spec: TensorSpec, local: Tensor) -> bool:
    return local.stride() == spec.stride or all(
        a == b or n == 1 for a, b, n in zip(spec.stride, local.stride(), spec.shape, strict=True)
    )


def _copy(destination: Tensor, source: Tensor) -> None:
    """Copy a tensor of any dtype, and only once for each element of expanded dimensions."""
    for dim, (size, step) in enumerate(zip(destination.shape, destination.stride(), strict=True)):
        if step == 0 and size > 1:  # `_fits`: then the source is expanded in this dimension too
            destination, source = destination.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    as_words(destination).copy_(as_words(source))


def _bytes_of(local: Tensor, size: int) -> Tensor:
    if local.dim() == 1 and local.stride(0) == 1 and local.dtype == torch.float32:  # the common case, in half the time
        return local.detach().view(torch.uint8)
    return view_bytes(local.untyped_storage(), storage_offset_bytes(local), size)


def _allocate(size: int) -> Tensor:
    try:
        return allocate(size)
    except RuntimeError as e:
        raise TransferError(f"no memory for {size} bytes of the state ({str(e).splitlines()[0][:200]}).") from None
