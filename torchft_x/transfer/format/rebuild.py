"""From a layout of another process back to a state dict: into given tensors where they fit. Pure.

`find_targets` walks the whole tree before a byte of tensor data moves: it checks every value, and finds for each
tensor of the table its path and the destination the caller offers. `rebuild` then makes the values.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchft_x.errors import TorchftXError, TransferError
from torchft_x.transfer.format import leaves, structured
from torchft_x.transfer.format.flatten import describe_dtensor, is_dtensor, join_path
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.leaves import Leaf, Node
from torchft_x.transfer.format.limits import MAX_DEPTH, MAX_DIMS, MAX_NODES, MAX_SAME_HASH
from torchft_x.transfer.format.memory import uncollected


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of one tensor of the table."""

    path: str
    given: Any  # the object that the caller offers at this path (Tensor, Parameter, DTensor), or None
    local: Tensor | None  # the memory of `given`


@uncollected
def find_targets(layout: Layout, into: Any = None, finder: type[Finder] | None = None) -> list[Target]:
    """Return a target for each tensor of the layout, in order. `into` is a state dict like the layout's, or None.

    Raises `TransferError` for a tree that is malformed, that names a leaf type not registered here, or that holds a
    DTensor for which `into` has none with the same placements.
    """
    walk = (finder or Finder)(layout)
    walk.node(layout.tree, into, "", 0)
    if len(walk.targets) != len(layout.tensors):
        raise TransferError(f"the manifest lists {len(layout.tensors)} tensors and uses {len(walk.targets)}.")
    return walk.targets


def first_paths(layout: Layout, targets: list[Target]) -> dict[int, str]:
    """Return the path of each blob's first tensor, to name it in an error."""
    paths: dict[int, str] = {}
    for spec, target in zip(layout.tensors, targets, strict=True):
        if spec.blob is not None:
            paths.setdefault(spec.blob, target.path)
    return paths


@uncollected
def rebuild(layout: Layout, targets: list[Target], tensors: list[Tensor]) -> Any:
    """Return the state dict. `tensors` are the memory filled for each target.

    Where that is the target's own memory, the caller's object is returned at its place. Raises `TransferError` if a
    registered leaf's decode fails.
    """
    return _Builder(layout, targets, tensors).node(layout.tree, None, "", 0)


class Walker:
    """One walk over an untrusted tree. `into` is the caller's value at the same place, or None."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.count = 0  # number of values seen
        self.next = 0  # index of the next tensor; the tree uses each exactly once, in order

    def node(self, node: Node, into: Any, path: str, depth: int) -> Any:
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_NODES:
            raise TransferError(f"the manifest is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} values.")
        handler = _HANDLERS.get(node[0]) if isinstance(node, list) and node and isinstance(node[0], str) else None
        if handler is None:
            return leaves.decode_scalar(node)
        return handler(self, node, into, path, depth)

    def mapping(self, node: Node, into: Any, path: str, depth: int) -> dict[Any, Any]:
        tag, items, *rest = _shape(node, 2 if node[0] == "dict" else 3)
        result: dict[Any, Any] = {} if tag == "dict" else OrderedDict()
        below = into if isinstance(into, Mapping) else {}
        pairs = [_shape(item, 2) for item in _items(items)]
        keys = _spread([self.key(key, depth) for key, _ in pairs], path)
        for key, (_, value) in zip(keys, pairs, strict=True):
            result[key] = self.node(value, below.get(key), join_path(path, key), depth + 1)
        if len(result) != len(items):
            raise TransferError(f"the manifest repeats a key at {path!r}.")
        metadata = self.node(rest[0], None, path, depth + 1) if rest else None
        if metadata is not None:
            result._metadata = metadata  # type: ignore[attr-defined]  # versions of the modules, see flatten
        return result

    def sequence(self, node: Node, into: Any, path: str, depth: int) -> Any:
        tag, items = _shape(node, 2)
        items = _items(items)
        below = into if isinstance(into, list | tuple) and len(into) == len(items) else [None] * len(items)
        values = [self.node(v, below[i], join_path(path, i), depth + 1) for i, v in enumerate(items)]
        return values if tag == "list" else tuple(values)

    def members(self, node: Node, into: Any, path: str, depth: int) -> Any:
        tag, items = _shape(node, 2)
        values = _spread([self.key(v, depth) for v in _items(items)], path)
        return set(values) if tag == "set" else frozenset(values)

    def key(self, node: Node, depth: int) -> Any:
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_NODES:
            raise TransferError("the manifest has a key that is over the limits.")
        if isinstance(node, list) and node and node[0] == "ktuple":
            _, items = _shape(node, 2)
            return tuple(self.key(v, depth + 1) for v in _items(items))
        return leaves.decode_scalar(node)

    def registered(self, node: Node, into: Any, path: str, depth: int) -> Any:
        _, name, value = _shape(node, 3)
        leaf = leaves.leaf_of_name(name, into) if isinstance(name, str) else None
        if leaf is None:
            raise TransferError(
                f"state dict leaf {path} is a {str(name)[:100]!r}, which is not registered in this process and not "
                "of a type in its own state dict; call register_leaf there too."
            )
        return self.leaf(leaf, self.node(value, None, path, depth + 1), path)

    def defaulting(self, node: Node, into: Any, path: str, depth: int) -> Any:
        _, name, items = _shape(node, 3)
        if not isinstance(items, list) or items[:1] != ["dict"] or not isinstance(name, str):
            raise TransferError(f"the manifest has a broken defaultdict at {path!r}.")
        try:
            factory = structured.factory_of(name, path, into)
        except KeyError:
            raise TransferError(
                f"state dict leaf {path} is a defaultdict of {name[:100]!r}, and this process has none of it at that "
                "place; give it the same state dict, or make it a dict."
            ) from None
        return defaultdict(factory, self.node(items, into, path, depth + 1))

    def tensor(self, node: Node, into: Any, path: str, depth: int) -> Any:
        tag, index, *rest = _shape(node, {"T": 2, "P": 3, "D": 4}[node[0]])
        if index != self.next or type(index) is not int or index >= len(self.layout.tensors):
            raise TransferError(f"the manifest uses tensor {str(index)[:20]} out of order at {path!r}.")
        self.next += 1
        return self.place(index, tag, rest, into, path)

    def leaf(self, leaf: Leaf, value: Any, path: str) -> Any:
        raise TypeError("a walker decides what a registered leaf becomes")

    def place(self, index: int, tag: str, rest: list[Any], into: Any, path: str) -> Any:
        raise TypeError("a walker decides what a tensor becomes")


class Finder(Walker):
    """The walk before the data: checks the tree and finds the targets."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.targets: list[Target] = []

    def leaf(self, leaf: Leaf, value: Any, path: str) -> Any:
        return None  # the user's decode sees only complete values

    def place(self, index: int, tag: str, rest: list[Any], into: Any, path: str) -> Any:
        local = into if isinstance(into, Tensor) else None
        self.check_parameter(index, tag, rest, path)
        if tag == "D":
            local = self.shard(index, rest, into, path)
        elif is_dtensor(into):
            local = None  # a plain tensor never fills a shard
        self.targets.append(Target(path, into if local is not None else None, local))
        return None

    def check_parameter(self, index: int, tag: str, rest: list[Any], path: str) -> None:
        dtype = self.layout.tensors[index].dtype
        if tag == "P" and (
            type(rest[0]) is not bool or (rest[0] and not (dtype.is_floating_point or dtype.is_complex))
        ):
            raise TransferError(f"the manifest has a broken parameter at {path!r}.")

    def shard(self, index: int, rest: list[Any], into: Any, path: str) -> Tensor:
        """Return the local shard of `into`, which must be a DTensor laid out as the source's."""
        placements, shape = rest
        for values, kind in ((placements, str), (shape, int)):
            if not (isinstance(values, list) and len(values) <= MAX_DIMS and all(type(v) is kind for v in values)):
                raise TransferError(f"the manifest has a broken DTensor at {path!r}.")
        theirs = f"{', '.join(placements)[:200]} of global shape {shape}"
        if not is_dtensor(into):
            raise TransferError(
                f"state dict leaf {path} is a DTensor with {theirs}; it can only be received in place, so give "
                "`into` a state dict that has a DTensor there."
            )
        if describe_dtensor(into) != (placements, shape):
            ours = f"{', '.join(describe_dtensor(into)[0])} of global shape {list(into.shape)}"
            raise TransferError(f"state dict leaf {path} has {theirs} at the source, {ours} here.")
        local: Tensor = into.to_local()
        spec = self.layout.tensors[index]
        if tuple(local.shape) != spec.shape or local.dtype != spec.dtype:
            raise TransferError(
                f"state dict leaf {path}: the local shard is {spec.shape} {spec.dtype} at the source, "
                f"{tuple(local.shape)} {local.dtype} here."
            )
        return local


class _Builder(Walker):
    """The walk after the data: makes the values."""

    def __init__(self, layout: Layout, targets: list[Target], tensors: list[Tensor]) -> None:
        super().__init__(layout)
        self.targets = targets
        self.tensors = tensors

    def leaf(self, leaf: Leaf, value: Any, path: str) -> Any:
        try:
            return leaf.decode(value)
        except TorchftXError:
            raise
        except Exception as e:
            raise TransferError(f"state dict leaf {path}: decode of {leaf.name} failed ({e!r}).") from e

    def place(self, index: int, tag: str, rest: list[Any], into: Any, path: str) -> Any:
        target, tensor = self.targets[index], self.tensors[index]
        if target.local is tensor:
            return target.given
        return torch.nn.Parameter(tensor, requires_grad=rest[0]) if tag == "P" else tensor


def _spread(keys: list[Any], path: str) -> list[Any]:
    """Return the keys if few of them share a hash. Raises `TransferError` otherwise.

    Python compares keys with the same hash one by one, and the author of a manifest chooses the hashes of its
    numbers. So equal hashes are counted by sorting and not in another table.
    """
    hashes = sorted(map(hash, keys))
    if any(a == b for a, b in zip(hashes, hashes[MAX_SAME_HASH:], strict=False)):
        raise TransferError(f"the manifest has more than {MAX_SAME_HASH} keys with the same hash at {path!r}.")
    return keys


def _shape(node: Any, length: int) -> list[Any]:
    if not isinstance(node, list) or len(node) != length:
        raise TransferError(f"the manifest has a value {str(node)[:60]!r} of broken form.")
    return node


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TransferError(f"the manifest has a container {str(value)[:60]!r} of broken form.")
    return value


_HANDLERS: dict[str, Callable[[Walker, Node, Any, str, int], Any]] = {
    "dict": Walker.mapping,
    "odict": Walker.mapping,
    "list": Walker.sequence,
    "tuple": Walker.sequence,
    "set": Walker.members,
    "fset": Walker.members,
    "leaf": Walker.registered,
    "ddict": Walker.defaulting,
    "T": Walker.tensor,
    "P": Walker.tensor,
    "D": Walker.tensor,
}
