"""Write PyTorch's Flight Recorder to a file when a group fails or is aborted.

It holds collectives, sizes and each member's progress. Off by default (`env.flight_folder`), because a full recorder
(2,000 entries) takes 0.15 s to write. There is one file per quorum and rank,
``<folder>/quorum_<id>/<replica id>_<rank>.json``. At most `MAX_QUORUMS` of these folders are kept, the newest. The
file is JSON, with the recorder's own text inside::

    {"quorum_id": 7, "replica_id": "a", "rank": 0, "world_size": 2, "time": seconds since 1970, "reason": "...",
     "gloo": {...}, "nccl": {...}}
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from pathlib import Path

import torch

from torchft_x import env
from torchft_x.atomic_file import replace_file

MAX_QUORUMS = 32  # number of quorum folders kept

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")  # characters that a file's name must not contain
_FOLDER = re.compile(r"quorum_(\d+)$")
_SOURCES = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}  # torch's functions, missing in some builds


def dump(
    quorum_id: int | None, replica_id: str, rank: int, size: int, reason: str, folder: str | None = None
) -> Path | None:
    """Write the recorder's file and return its path. Never raises.

    Returns None if no folder is given or configured, if `quorum_id` is None, or if the file can't be written (which
    is logged). `folder` overrides the environment's (`env.flight_folder`).
    """
    folder = folder or env.flight_folder()
    if folder is None or quorum_id is None:
        return None
    here = Path(folder) / f"quorum_{quorum_id}"
    path = here / f"{_NAME.sub('_', replica_id)[:100] or 'replica'}_{rank}.json"
    about = {
        "quorum_id": quorum_id,
        "replica_id": replica_id,
        "rank": rank,
        "world_size": size,
        "time": time.time(),
        "reason": reason,
    }
    try:
        here.mkdir(parents=True, exist_ok=True)
        text = json.dumps(about)[:-1] + "".join(f', "{name}": {trace}' for name, trace in _traces().items()) + "}\n"
        replace_file(path, text)
        _forget_oldest(Path(folder))
    except (OSError, RuntimeError, ValueError) as e:
        _log.warning("The flight recorder's file %s can't be written: %s", path, e)
        return None
    return path


def _traces() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, function in _SOURCES.items():
        dump_json = getattr(torch._C._distributed_c10d, function, None)
        if dump_json is not None:
            text = dump_json(includeCollectives=True, onlyActive=False)
            found[name] = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return found


def _forget_oldest(folder: Path) -> None:
    quorums = sorted((int(match[1]), match[0]) for entry in os.listdir(folder) if (match := _FOLDER.match(entry)))
    for _, name in quorums[:-MAX_QUORUMS]:
        shutil.rmtree(folder / name, ignore_errors=True)  # another rank may be deleting it, too
