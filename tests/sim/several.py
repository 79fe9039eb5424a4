"""Wrong variants of the rules for several lighthouses (`core.coalition`): each leaves one out. Found by the swarm.

The explorer (`tests.sim.variants`) knows no quorum that is issued and received by some of its members at one of two
lighthouses, and no last words; the simulated cluster does.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tests.sim import swarm
from tests.sim.invariants import Violation
from tests.sim.variants import Patch, _patched
from torchft_x.core.chain import Chain
from torchft_x.core.coalition import Coalition
from torchft_x.core.lighthouse import Lighthouse
from torchft_x.core.messages import LastWord
from torchft_x.core.tenure import Tenure
from torchft_x.core.types import Quorum


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A rule that is left out, and from which seed on the swarm sees the harm soon."""

    name: str
    left_out: str
    harm: str
    finds: frozenset[str]
    patch: Patch
    first_seed: int

    def applied(self) -> AbstractContextManager[Any]:
        return self.patch()


def _any_receipt(self: Coalition, quorum: Quorum, received: Collection[str]) -> bool:
    return any(m.replica_id in received or self.ended.get(m.replica_id, 0) > quorum.id for m in quorum.members)


def _both_halves(self: Coalition, quorum: Quorum, some: int, of: int) -> bool:
    return 2 * some >= of


def _always_mine(self: Coalition, quorum: Quorum) -> bool:
    return quorum.id % 16 == self._place  # whatever an earlier life of it has issued after that


_take_last_word, _left_open = Lighthouse._take_last_word, Tenure._left_open


def _no_record(self: Lighthouse, word: LastWord | None, now: float) -> list[Any]:
    return _take_last_word(self, replace(word, quorum=None) if word is not None else None, now)


def _one_before(self: Tenure) -> tuple[Quorum, ...]:
    return _left_open(self)[-1:]


def _nothing_before(self: Tenure) -> tuple[Quorum, ...]:
    return ()


def _whoever_is_here(self: Coalition, quorum: Quorum, members: Collection[str]) -> bool:
    return True


def _leave_open_no(self: Chain, quorum: Quorum) -> None:
    """What was issued is followed, and not those before it."""


_ALL = [
    Variant(
        name="no majority", left_out="whoever is at a lighthouse goes on (R9 alone, with proofs instead of leases)",
        harm="both parts of a quorum go on", finds=frozenset({"I1", "I4", "A1"}), first_seed=0,
        patch=_patched((Coalition, "wins", _whoever_is_here)),
    ),
    Variant(
        name="both halves", left_out="a half goes on wherever it is",
        harm="both halves of a quorum go on", finds=frozenset({"I1", "I4", "A1"}), first_seed=0,
        patch=_patched((Coalition, "_are_most", _both_halves)),
    ),
    Variant(
        name="forgetful tie", left_out="a lighthouse that has lost its memory still breaks ties",
        harm="it does so twice for one quorum", finds=frozenset({"I1", "I4", "A1"}), first_seed=0,
        patch=_patched((Coalition, "issued", _always_mine)),
    ),
    Variant(
        name="one receipt", left_out="a quorum is closed when one of its members has received a newer one",
        harm="the others go on over it elsewhere", finds=frozenset({"I1", "I4", "A1"}), first_seed=0,
        patch=_patched((Coalition, "closes", _any_receipt)),
    ),
    Variant(
        name="no record", left_out="that a member has ended is enough, whatever it had received",
        harm="a new lineage beside those that go on in what it had received", finds=frozenset({"I1", "I4", "A1"}),
        first_seed=0, patch=_patched((Lighthouse, "_take_last_word", _no_record)),
    ),
    Variant(
        name="nothing follows", left_out="a quorum does not say what it follows",
        harm="who hears of it does not hear of those that are open", finds=frozenset({"I1", "I4", "A1"}), first_seed=0,
        patch=_patched((Tenure, "_left_open", _nothing_before)),
    ),
]  # fmt: skip
VARIANTS = {variant.name: variant for variant in _ALL}


def hunt(variant: Variant, *, seconds: float = 60.0) -> tuple[Violation | None, int]:
    """The first violation of a run with two lighthouses, and how many runs it took. `seconds`: of the processor."""
    before, swarm.STANDBY = swarm.STANDBY, 1.0
    end, seed = time.process_time() + seconds, variant.first_seed
    try:
        with variant.applied():
            while time.process_time() < end:
                try:
                    swarm.run(seed, trace=60)
                except Violation as e:
                    if e.invariant in variant.finds:
                        return e, seed - variant.first_seed + 1
                seed += 1
    finally:
        swarm.STANDBY = before
    return None, seed - variant.first_seed
