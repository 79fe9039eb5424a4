"""Names of folders and files below the URL; which checkpoints may be removed, by names and steps. Pure, no clock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from torchft_x.errors import ConfigError

MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-([0-9]{8,18})\.([A-Za-z0-9_-]{1,80})")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Name(NamedTuple):
    """Name of a checkpoint. The greater name is the newer checkpoint."""

    step: int  # number of commits before it
    writer: str  # one attempt of one group

    def __str__(self) -> str:
        return f"step-{self.step:08d}.{self.writer}"


def name(step: int, writer: str) -> Name:
    """Return the name of a checkpoint. `writer` is any text that no other attempt of any group has.

    Raises `ConfigError` for a negative or too large step.
    """
    fit = _UNFIT.sub("-", writer)
    if fit != writer or len(fit) > 60:
        fit = f"{fit[:40]}-{hashlib.sha256(writer.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    if _FOLDER.fullmatch(str(Name(step, fit))) is None:
        raise ConfigError(f"a checkpoint of step {step} by {writer[:60]!r} has no name; a step is a number from 0 on.")
    return Name(step, fit)


def parse(folder: str) -> Name | None:
    """Return the checkpoint's name, or None if the folder is none of ours."""
    match = _FOLDER.fullmatch(folder)
    return None if match is None or str(found := Name(int(match[1]), match[2])) != folder else found


def index_file(rank: int) -> str:
    return f"shard-{rank:05d}.json"


def data_file(rank: int) -> str:
    return f"shard-{rank:05d}.data"


def outdated(found: Iterable[Name], complete: Iterable[Name], newest: Name, keep: int) -> list[Name]:
    """Return the checkpoints that are not needed any more once `newest`, a complete one, is written, oldest first.

    The newest `keep` complete ones stay. An incomplete one that is not newer was left by a writer that is dead or was
    overtaken: it would never be read. Newer ones belong to another writer.
    """
    older = sorted((n for n in complete if n <= newest), reverse=True)
    kept = {newest, *older[:keep]}
    return sorted(n for n in found if n.step <= newest.step and n not in kept)
