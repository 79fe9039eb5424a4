"""Wrong variants of the rules for several lighthouses (`core.quorum.acceptors`): each leaves one out.

Each is found by a story (`tests/core/test_several_lighthouses.py`) that is told against it. The explorer of
`tests.sim.variants` does not know them: there, no quorum is received by some of its members only while another
lighthouse goes on, and nobody has last words. The simulated cluster does; `hunt` searches with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tests.core import test_several_lighthouses as stories
from tests.sim import swarm
from tests.sim.invariants import Violation
from tests.sim.variants import Patch, _patched
from torchft_x.core.lighthouse.other_lighthouses import OtherLighthouses
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord
from torchft_x.core.messages.lighthouse import LastWord
from torchft_x.core.quorum.acceptors import QuorumIntersection
from torchft_x.core.types import Quorum, State


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A rule that is left out."""

    name: str
    left_out: str
    harm: str
    patch: Patch
    story: Callable[[], None]

    def applied(self) -> AbstractContextManager[Any]:
        return self.patch()


def _any_receipt(self: QuorumIntersection, quorum: Quorum, received: Collection[str]) -> bool:
    return any(m.replica_id in received or self.ended.get(m.replica_id, 0) > quorum.id for m in quorum.members)


def _both_halves(self: QuorumIntersection, quorum: Quorum, some: int, of: int) -> bool:
    return 2 * some >= of


def _always_mine(self: QuorumIntersection, quorum: Quorum) -> bool:
    return quorum.id % 16 == self._place  # whatever an earlier life of it has issued after that


_take_last_word = OtherLighthouses.take_last_word


def _no_record(self: OtherLighthouses, word: LastWord, now: float) -> list[Any]:
    return _take_last_word(self, replace(word, quorum=None), now)


def _received_what_was_sent(self: OtherLighthouses, record: MemberRecord, state: State) -> None:
    self._coalition.end(record.replica_id, record.quorum_id)
    self._tenure.recheck(self._roll)


def _nothing_before(self: QuorumState) -> tuple[Quorum, ...]:
    return ()


def _whoever_is_here(self: QuorumIntersection, quorum: Quorum, members: Collection[str]) -> bool:
    return True


_ALL = [
    Variant(
        name="no majority", left_out="whoever is at a lighthouse goes on (R9 alone, with proofs instead of leases)",
        harm="both parts of a quorum go on",
        patch=_patched((QuorumIntersection, "wins", _whoever_is_here)),
        story=stories.test_who_waits_is_told_that_the_others_may_be_elsewhere_and_what_to_do,
    ),
    Variant(
        name="both halves", left_out="a half goes on wherever it is",
        harm="both halves of a quorum go on",
        patch=_patched((QuorumIntersection, "_are_most", _both_halves)),
        story=stories.test_of_two_halves_only_the_one_at_the_lighthouse_that_issued_it_goes_on,
    ),
    Variant(
        name="forgetful tie", left_out="a lighthouse that has lost its memory still breaks ties",
        harm="it does so twice for one quorum",
        patch=_patched((QuorumIntersection, "issued", _always_mine)),
        story=stories.test_a_lighthouse_that_has_forgotten_what_it_issued_breaks_no_tie,
    ),
    Variant(
        name="one receipt", left_out="a quorum is closed when one of its members has received a newer one",
        harm="the others go on over it elsewhere",
        patch=_patched((QuorumIntersection, "closes", _any_receipt)),
        story=stories.test_one_member_that_has_gone_on_does_not_close_a_quorum,
    ),
    Variant(
        name="no record", left_out="that a member has ended is enough, whatever it had received",
        harm="a new lineage beside those that go on in what it had received",
        patch=_patched((OtherLighthouses, "take_last_word", _no_record)),
        story=stories.test_its_last_words_tell_of_the_successors,
    ),
    Variant(
        name="sent is received", left_out="who leaves may not have received what it was sent last",
        harm="a quorum is closed too early, and the others go on over it elsewhere",
        patch=_patched((OtherLighthouses, "part", _received_what_was_sent)),
        story=stories.test_who_leaves_while_its_answer_is_under_way_has_not_received_it,
    ),
    Variant(
        name="nothing follows", left_out="a quorum does not say what it follows",
        harm="who hears of it does not hear of those that are open",
        patch=_patched((QuorumState, "_left_open", _nothing_before)),
        story=stories.test_what_one_lighthouse_left_open_is_open_at_the_next,
    ),
]  # fmt: skip
VARIANTS = {variant.name: variant for variant in _ALL}


def hunt(variant: Variant, *, first_seed: int = 0, seconds: float = 60.0) -> tuple[Violation | None, int]:
    """The first violation of a run with two lighthouses, and its seed. `seconds`: of the processor."""
    before, swarm.STANDBY = swarm.STANDBY, 1.0
    end, seed = time.process_time() + seconds, first_seed
    try:
        with variant.applied():
            while time.process_time() < end:
                try:
                    swarm.run(seed, trace=60)
                except Violation as e:
                    return e, seed
                seed += 1
    finally:
        swarm.STANDBY = before
    return None, seed
