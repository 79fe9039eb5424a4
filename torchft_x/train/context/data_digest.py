"""Describes a group's training data by a cheap digest: small sources are read whole, large ones by samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from torchft_x.errors import ConfigError
from torchft_x.transfer.format.memory import memory_of

WHOLE_BYTES = 64 << 20  # larger sources are sampled; reading this much takes some 0.1 s
SAMPLES = 64  # number of blocks read of a large source, spread evenly from its first bytes to its last
BLOCK_BYTES = 64 << 10
_MAX_READ_FILES = 256  # most files that are read; of further files only the size counts


class Described(NamedTuple):
    """Arguments of `Manager.declare` after the name."""

    words: str
    parts: tuple[str, ...]
    digest: str


def describe_data(
    *sources: str | os.PathLike[str] | bytes | bytearray | memoryview | torch.Tensor, name: str = ""
) -> Described:
    """Describe files, directories (all files below, in order of their names), or bytes and tensors in memory.

    The digest covers sizes and contents, but not names and paths. Above 64 MiB it covers the size and 64 blocks, so a
    change of a few bytes in a large file may go undetected. Of more than 256 files, 256 are read.

    Args:
        sources: at least one source.
        name: name of the data for people; by default the first file's name.

    Raises `ConfigError`, which names the source that can't be read.
    """
    if not sources:
        raise ConfigError("describe_data() needs a file, a directory, bytes or a tensor.")
    total = hashlib.sha256()
    parts: list[str] = []
    size = 0
    entries = [entry for source in sources for entry in _entries(source)]
    looked_into = {round(i * (len(entries) - 1) / max(1, _MAX_READ_FILES - 1)) for i in range(_MAX_READ_FILES)}
    for i, (label, source) in enumerate(entries):
        try:
            n, digest = _digest(source, sample=i in looked_into)
        except OSError as e:
            raise ConfigError(f"the data {label} can't be read ({e.strerror or e}).") from None
        total.update(f"{n} {digest}\n".encode())
        parts.append(f"{label} of {n:,} bytes" + (f", digest {digest[:12]}" if i in looked_into else ""))
        size += n
    whole = total.hexdigest()[:32]
    first = name or entries[0][0]
    files = "" if len(entries) == 1 else f" and {len(entries) - 1} more"
    return Described(
        f"{first}{files}, {size:,} bytes, digest {whole[:12]}", tuple(parts) if len(parts) > 1 else (), whole
    )


_Source = Path | memoryview


def _entries(source: object) -> Iterator[tuple[str, _Source]]:
    if isinstance(source, torch.Tensor):
        flat = source.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        yield f"a tensor {tuple(source.shape)}", memory_of(flat) if flat.numel() else memoryview(b"")
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield "bytes", memoryview(source).cast("B")
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"the data {path}: the directory holds no files.")
        for file in files:
            yield (file.name if file == path else str(file.relative_to(path))), file
    else:
        raise ConfigError(f"describe_data() takes files, directories, bytes and tensors, not {type(source).__name__}.")


def _digest(source: _Source, *, sample: bool) -> tuple[int, str]:
    h = hashlib.sha256()
    if isinstance(source, memoryview):
        for start, end in spans(len(source)):
            h.update(source[start:end])
        return len(source), h.hexdigest()
    size = source.stat().st_size
    if sample:
        with open(source, "rb") as f:
            for start, end in spans(size):
                f.seek(start)
                h.update(f.read(end - start))
    return size, h.hexdigest()


def spans(size: int) -> list[tuple[int, int]]:
    """Return the (start, end) ranges that are read of `size` bytes."""
    if size <= WHOLE_BYTES:
        return [(at, min(size, at + (1 << 20))) for at in range(0, size, 1 << 20)]
    last = size - BLOCK_BYTES
    return [(at, at + BLOCK_BYTES) for at in (i * last // (SAMPLES - 1) for i in range(SAMPLES))]
