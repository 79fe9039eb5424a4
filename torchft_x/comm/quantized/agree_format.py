"""Whether all members of a group reduce in the same format, asked before they do.

In another format the same values are another number of bytes, and gloo ends the process where sizes differ, before
anybody can read a word. So the first bytes that travel are as many in every format: each member's word about its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchft_x.comm.quantized.format import Format
from torchft_x.errors import CollectiveError, ConfigError

_WORD = 8  # bytes: one that says whether the member contributes, and the format's name, filled up with zeros


def agree(pg: Any, fmt: Format, device: torch.device, *, contributes: bool = True) -> None:
    """Wait until all members have said in which format they reduce. The first quantised call of all members of `pg`.

    The format of the first member that contributes (one that heals doesn't) is right: who has another one must end, and
    the others go on without it.

    Raises `ConfigError` if ours is wrong, `CollectiveError` if somebody else's is, and what the process group raises.
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
            f"this group quantises in {names[rank]!r}, and the one at place {leader} of {len(names)} in {names[leader]!r}; use "
            "one format in the whole job, and say it before the first step (Manager.declare_quantization)."
        )
    wrong = [f"the one at place {r} in {name!r}" for r, name in enumerate(names) if name != names[leader]]
    if wrong:
        return CollectiveError(f"this group quantises in {names[rank]!r}, and {', '.join(wrong)}: it must end.")
    return None
