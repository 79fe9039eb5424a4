"""Dumps of a rank's parameters after its commits, for benchmarks/evidence/check_params.py."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable

import torch


class Dumper:
    """Writer of ``g{group}-r{rank}-a{attempt}-s{step}.bin``: one line of JSON, then every parameter's bytes in order.

    `params` are plain tensors, whose memory each `write` reads.
    """

    def __init__(self, folder: str, params: Iterable[torch.Tensor], group: str, rank: int, attempt: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._name = os.path.join(folder, f"g{group}-r{rank}-a{attempt}")
        self._header = {"group": group, "rank": rank, "attempt": attempt}
        self._params = [p.detach() for p in params]
        self._bytes = bytearray(sum(p.numel() * p.element_size() for p in self._params))
        self._flat = torch.frombuffer(self._bytes, dtype=torch.uint8)  # a view of self._bytes

    def write(self, step: int, **fields: object) -> None:
        """Write the dump of a step, with `fields` and the SHA-256 of the bytes in its header."""
        at = 0
        for p in self._params:
            raw = p.reshape(-1).view(torch.uint8)
            self._flat[at : at + raw.numel()].copy_(raw)
            at += raw.numel()
        header = {**self._header, "step": step, **fields, "digest": hashlib.sha256(self._bytes).hexdigest()}
        path = f"{self._name}-s{step:06d}.bin"
        with open(path + ".part", "wb") as f:
            f.write(json.dumps(header).encode() + b"\n")
            f.write(self._bytes)
        os.rename(path + ".part", path)  # a reader sees the whole file or none
