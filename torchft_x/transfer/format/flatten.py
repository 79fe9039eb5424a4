"""From a state dict to its layout and the tensors that hold its bytes. Pure; copies no tensor."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchft_x.errors import LeafError
from torchft_x.transfer.format import leaves, structured
from torchft_x.transfer.format.layout import Layout, TensorSpec
from torchft_x.transfer.format.leaves import Node
from torchft_x.transfer.format.limits import ALIGNMENT, MAX_DEPTH, MAX_NODES, MAX_STATE_BYTES
from torchft_x.transfer.format.memory import (
    as_words,
    contiguous_stride,
    extent,
    has_memory,
    is_dense,
    storage_offset_bytes,
    uncollected,
    view_bytes,
)

_PLAIN = frozenset([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8])


def check_sendable(state_dict: Any) -> None:
    """Raise `LeafError` naming the path of the first value that can't be sent. Copies nothing."""
    flatten(state_dict)


@uncollected
def flatten(state_dict: Any) -> tuple[Layout, list[Tensor]]:
    """Return the layout of a state dict, and the source of each blob.

    A source is a tensor that shares memory with the state dict, of an integer or complex128 dtype, shaped so that its
    elements in order are the blob's bytes. Raises `LeafError` naming the path of a value that can't be sent.
    """
    walk = Flattener()
    tree = walk.node(state_dict, "", 0)
    specs, sources, sizes = group_tensors(walk.tensors)
    return Layout(tree, tuple(specs), tuple(sizes)), sources


class Flattener:
    """Walks a state dict once, in order, and collects its tensors."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # strided, with memory, in the order of the tree
        self.count = 0  # number of values seen

    def node(self, value: Any, path: str, depth: int) -> Node:
        self.count += 1
        if self.count > MAX_NODES:
            raise LeafError(f"state dict: more than {MAX_NODES} values; keep such data in tensors.")
        if depth > MAX_DEPTH:
            raise LeafError(f"state dict leaf {path[:200]}: nested deeper than {MAX_DEPTH} (does it contain itself?).")
        kind = type(value)
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if kind is OrderedDict:
            items = [[self.key(k, path, depth), self.node(v, join_path(path, k), depth + 1)] for k, v in value.items()]
            # Module.state_dict() keeps its modules' versions here; load_state_dict reads them.
            return [
                "odict",
                items,
                self.node(getattr(value, "_metadata", None), join_path(path, "_metadata"), depth + 1),
            ]
        if kind is dict:
            return [
                "dict",
                [[self.key(k, path, depth), self.node(v, join_path(path, k), depth + 1)] for k, v in value.items()],
            ]
        if kind is list or kind is tuple:
            return [kind.__name__, [self.node(v, join_path(path, i), depth + 1) for i, v in enumerate(value)]]
        if kind is set or kind is frozenset:
            return ["set" if kind is set else "fset", [self.key(v, path, depth) for v in value]]
        try:
            if kind is defaultdict:
                name = structured.name_of_factory(value, path)
                return ["ddict", name, self.node(dict(value), path, depth + 1)]
            leaf = leaves.leaf_of_type(kind) if kind not in leaves.BUILTIN else None
            inner = None if leaf is None else leaf.encode(value)
        except ValueError as e:
            raise LeafError(f"state dict leaf {path or '(the whole)'}: {e}.") from None
        if leaf is not None:
            return ["leaf", leaf.name, self.node(inner, path, depth + 1)]
        return self.scalar(value, path)

    def key(self, value: Any, path: str, depth: int) -> Node:
        """Encode a key of a dict or a member of a set."""
        self.count += 1
        if depth > MAX_DEPTH:
            raise LeafError(f"state dict leaf {path[:200]}: a key is nested deeper than {MAX_DEPTH}.")
        if type(value) is tuple:
            return ["ktuple", [self.key(v, path, depth + 1) for v in value]]
        return self.scalar(value, join_path(path, value))

    def scalar(self, value: Any, path: str) -> Node:
        try:
            return leaves.encode_scalar(value)
        except KeyError:
            kind = type(value)
            raise LeafError(
                f"state dict leaf {path or '(the whole)'} is of type {kind.__module__}.{kind.__qualname__}, which "
                f"can't be sent; call register_leaf({kind.__name__}, encode, decode) in every process, or leave it out."
            ) from None
        except ValueError as e:
            raise LeafError(f"state dict leaf {path or '(the whole)'}: {e}.") from None

    def tensor(self, value: Tensor, path: str) -> Node:
        index = len(self.tensors)
        node: Node = ["T", index]
        if is_dtensor(value):
            node = self.sharded(value, index, path)
            value = value.to_local()
        elif type(value) is torch.nn.Parameter:
            node = ["P", index, value.requires_grad]
        elif type(value) is not Tensor:
            raise LeafError(
                f"state dict leaf {path} is a {type(value).__qualname__}, a tensor subclass that can't be sent; "
                "put its plain tensor into the state dict."
            )
        if value.requires_grad:
            value = value.detach()
        if value.layout != torch.strided or value.device.type == "meta" or value.is_quantized:
            raise LeafError(
                f"state dict leaf {path} is a {value.layout} tensor of {value.dtype} on {value.device}; only dense, "
                "unquantised tensors with memory can be sent."
            )
        if not has_memory(value):
            raise LeafError(
                f"state dict leaf {path} is {'a nested tensor' if value.is_nested else 'a tensor without memory of its own'}"
                f" ({value.dtype}, {value.device}); put plain tensors that hold its values into the state dict."
            )
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()  # these bits mean that the memory holds other values
        self.tensors.append(value)
        return node

    def sharded(self, value: Any, index: int, path: str) -> Node:
        """Return the node of a DTensor whose local shard is the tensor `index`."""
        return ["D", index, *describe_dtensor(value)]


def join_path(path: str, key: Any) -> str:
    """Return the path of a value for messages. It is never parsed, and never a reason to fail."""
    try:
        name = str(key)[:200]
    except ValueError:  # an int of more digits than Python turns into text
        name = f"({type(key).__name__})"
    return f"{path}/{name}" if path else name


def is_dtensor(value: Any) -> bool:
    """Return whether `value` is a DTensor, without importing torch.distributed.tensor (0.8 s).

    No DTensor can exist before that module is imported.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, getattr(module, "DTensor", ()))


def describe_dtensor(value: Any) -> tuple[list[str], list[int]]:
    """Return a DTensor's placements as text, and its global shape."""
    return [repr(p) for p in value.placements], list(value.shape)


@dataclass(frozen=True, slots=True)
class _Region:
    """Range of bytes, and the tensors in it (indices, ascending). In bytes of a storage if there are several tensors."""

    start: int
    end: int
    members: tuple[int, ...]


@uncollected
def group_tensors(tensors: list[Tensor]) -> tuple[list[TensorSpec], list[Tensor], list[int]]:
    """Return specs, blobs' sources and sizes. Tensors that overlap in memory get one blob.

    Blobs are numbered by their first tensor.
    """
    spans: dict[torch.device, list[tuple[int, int, int]]] = {}  # (address, end, index)
    specs: dict[int, TensorSpec] = {}
    for i, t in enumerate(tensors):
        nbytes = t.nbytes if t.is_contiguous() else extent(t.shape, t.stride(), t.dtype.itemsize)
        if nbytes:
            address = t.data_ptr()
            spans.setdefault(t.device, []).append((address, address + nbytes, i))
        else:
            specs[i] = TensorSpec(t.dtype, tuple(t.shape), tuple(t.stride()), None, 0)
    regions: list[_Region] = []
    for members in spans.values():
        for run in _merge(sorted(members)):
            regions += [run] if len(run.members) == 1 else _by_storage(run.members, tensors)
    sources: list[Tensor] = []
    for blob, region in enumerate(sorted(regions, key=lambda r: r.members[0])):
        sources.append(_describe_region(region, tensors, blob, specs))
    sizes = [source.numel() * source.dtype.itemsize for source in sources]
    if sum(sizes) > MAX_STATE_BYTES:
        raise LeafError(f"state dict: {sum(sizes)} bytes of tensors; at most {MAX_STATE_BYTES} can be sent.")
    return [specs[i] for i in range(len(tensors))], sources, sizes


def _by_storage(members: Sequence[int], tensors: list[Tensor]) -> list[_Region]:
    """Return the regions of tensors that overlap in memory, in bytes of their storage."""
    spans: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # storage -> (first byte, end, index)
    for i in members:
        t = tensors[i]
        storage, start = t.untyped_storage(), storage_offset_bytes(t)
        end = start + extent(t.shape, t.stride(), t.dtype.itemsize)
        spans.setdefault((storage.data_ptr(), storage.nbytes()), []).append((start, end, i))
    return [region for found in spans.values() for region in _merge(sorted(found))]


def _merge(spans: list[tuple[int, int, int]]) -> list[_Region]:
    """Merge overlapping spans into regions. Spans that only touch stay apart."""
    runs: list[tuple[int, int, list[int]]] = []
    for start, end, i in spans:
        if runs and start < runs[-1][1]:
            first, last, members = runs[-1]
            runs[-1] = (first, max(last, end), [*members, i])
        else:
            runs.append((start, end, [i]))
    return [_Region(start, end, tuple(sorted(members))) for start, end, members in runs]


def _describe_region(region: _Region, tensors: list[Tensor], blob: int, specs: dict[int, TensorSpec]) -> Tensor:
    """Fill in the specs of a region's tensors and return its source."""
    t = tensors[region.members[0]]
    if len(region.members) == 1:
        first = region.members[0]
        if t.dim() and t.stride(-1) == 1 and t.is_contiguous() and t.dtype in _PLAIN:  # the common case
            specs[first] = TensorSpec(t.dtype, tuple(t.shape), t.stride(), blob, 0)
            return t.view(torch.uint8)
        if not is_dense(t.shape, t.stride()):
            # Packed: the holes may be most of the storage.
            specs[first] = TensorSpec(t.dtype, tuple(t.shape), contiguous_stride(t.shape), blob, 0)
            return as_words(t)
        specs[first] = TensorSpec(t.dtype, tuple(t.shape), tuple(t.stride()), blob, 0)
        return view_bytes(t.untyped_storage(), storage_offset_bytes(t), region.end - region.start)
    start = region.start - region.start % ALIGNMENT
    for i in region.members:
        t = tensors[i]
        specs[i] = TensorSpec(t.dtype, tuple(t.shape), tuple(t.stride()), blob, storage_offset_bytes(t) - start)
    return view_bytes(t.untyped_storage(), start, region.end - start)


def has_dtensors(state: Any) -> bool:
    """Return whether a state dict holds a DTensor."""
    if isinstance(state, dict):
        return any(has_dtensors(v) for v in state.values())
    return any(has_dtensors(v) for v in state) if isinstance(state, list | tuple) else is_dtensor(state)


def new_dtensors(state: Any) -> Any:
    """Return new DTensors in the places of those in a state dict, and None for all else, to read a saved state into."""
    if is_dtensor(state):
        return torch.empty_like(state)
    if isinstance(state, dict):
        return {k: new_dtensors(v) for k, v in state.items()}
    if isinstance(state, list | tuple):
        return [new_dtensors(v) for v in state]
    return None
