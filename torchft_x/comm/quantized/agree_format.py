"""Check that all members of a group reduce in the same format, before they do.

Another format needs another number of bytes for the same values, and gloo ends the process where sizes differ, before
any error can be read. So the first message has the same size in every format: it names the sender's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchft_x.comm.quantized.format import Format
from torchft_x.errors import CollectiveError, ConfigError

_WORD = 8  # bytes: one flag whether the member contributes, and the format's name, padded with zeros


def agree(pg: Any, fmt: Format, device: torch.device, *, contributes: bool = True) -> None:
    """Exchange formats with all members of `pg` in their first quantised call, and raise unless they agree.

    The format of the first member that contributes (one that heals doesn't) is right. A member with another format
    must end, and the others go on without it.

    Raises `ConfigError` if our format is wrong, `CollectiveError` if another member's is, and the process group's
    errors.
    """
    world, rank = pg.size(), pg.rank()
    if world < 2:
        return
    mine = torch.tensor([contributes, *fmt.name.encode().ljust(_WORD - 1, b"\0")], dtype=torch.uint8, device=device)
    words = torch.empty(_WORD * world, dtype=torch.uint8, device=device)
    sizes = [_WORD] * world
    pg.alltoall_base(words, mine.repeat(world), sizes, sizes).wait()
    rows = words.view(world, _WORD).tolist()
    names = [bytes(row[1:]).rstrip(b"\0").decode("ascii", "replace") for row in rows]
    problem = _judge(rank, names, [bool(row[0]) for row in rows])
    if problem is not None:
        raise problem


def _judge(rank: int, names: Sequence[str], contributing: Sequence[bool]) -> Exception | None:
    leader = next((r for r, does in enumerate(contributing) if does), 0)
    if names[rank] != names[leader]:
        return ConfigError(
            f"this group quantises in {names[rank]!r}, and rank {leader} of {len(names)} in {names[leader]!r}; use "
            "one format in the whole job, and say it before the first step (Manager.declare_quantization)."
        )
    wrong = [f"rank {r} in {name!r}" for r, name in enumerate(names) if name != names[leader]]
    if wrong:
        return CollectiveError(f"this group quantises in {names[rank]!r}, and {', '.join(wrong)}: it must end.")
    return None
