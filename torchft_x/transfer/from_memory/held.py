"""Part of a copy in a supervisor's memory (`transfer.memory_slots`) from which a durable checkpoint can be written.

A copy is what a heal carries: the Manager's state dict of one rank, in the script's terms. A checkpoint is the parts
of a `Checkpoint`, cut so that others can read them. Neither follows from the other without the script's objects. So a
copy describes both, over the same bytes: for the checkpoint it holds the tensors of the state itself, and a
description of a few bytes for each. Any process that has the copy can write the checkpoint, without the script and
without its process group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from torchft_x.errors import TransferError
from torchft_x.transfer.durable.shard import Outline
from torchft_x.transfer.format.layout import dump, parse
from torchft_x.transfer.format.memory import memory_of

KEY = "durable"
"""First key of a copy's state dict, with the data for a checkpoint."""


@dataclass(frozen=True)
class HeldCheckpoint:
    """One rank's data for a durable checkpoint."""

    url: str = field(repr=False)  # it may hold a password
    job: str
    writer: str  # last part of the checkpoint's name
    keep: int
    outline: Outline = field(repr=False)

    def tree(self) -> dict[str, Any]:
        """Return the tree that is stored in the copy."""
        o = self.outline
        head = {
            "url": self.url, "job": self.job, "writer": self.writer, "keep": self.keep,
            "rank": o.rank, "ranks": o.ranks, "structure": o.structure, "pieces": o.pieces,
        }  # fmt: skip
        text = json.dumps(head, separators=(",", ":")).encode("ascii") + b"\n" + dump(o.whole)
        return {"head": torch.frombuffer(bytearray(text), dtype=torch.uint8), "tensors": o.tensors}


def held_in(tree: Any) -> HeldCheckpoint:
    """Return the `HeldCheckpoint` of a tree that was read from a copy. Raises `TransferError`."""
    try:
        if not isinstance(tree["head"], torch.Tensor):
            raise ValueError("no head")
        text, _, whole = bytes(memory_of(tree["head"])).partition(b"\n")
        head = json.loads(text)
        pieces = [(int(i), [int(n) for n in offset]) for i, offset in head["pieces"]]
        outline = Outline(
            int(head["rank"]), int(head["ranks"]), str(head["structure"]), parse(whole), pieces, list(tree["tensors"])
        )
        if len(pieces) != len(outline.tensors) or not all(isinstance(t, torch.Tensor) for t in outline.tensors):
            raise ValueError("another number of tensors than of pieces")
        return HeldCheckpoint(str(head["url"]), str(head["job"]), str(head["writer"]), int(head["keep"]), outline)
    except (KeyError, TypeError, ValueError) as e:
        raise TransferError(f"what the copy says of a checkpoint can't be understood ({e!r:.200}).") from None
