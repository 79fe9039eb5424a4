"""Every rule that is left out is noticed: by a test of core, or by the first runs of the swarm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.sim.variants import ANY_NUMBER, ANY_PART, SLOW_TAKEOVER, VARIANTS, NotCaughtError, Patch, Variant
from tests.unit.sim.test_protocol import a_spare_steps_in
from tests.unit.sim.test_world import dies_at_the_end, dies_while_it_sends


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.name)
def test_a_variant_is_caught(variant: Variant) -> None:
    assert variant.catch()


def test_a_variant_that_nothing_notices_is_an_error() -> None:
    other = "lighthouse.test_machine:TestTakeover.test_R1_new_ids_are_above_all_reported"
    variant = replace(VARIANTS["R9a any"], caught_by=other)
    with pytest.raises(NotCaughtError, match=r"R9a any .* does not notice it"):
        variant.catch()


def test_without_the_word_of_those_that_never_received_it_a_takeover_takes_a_lease() -> None:
    """R8, of a lighthouse that can't read what was written down. Only virtual time shows it: nothing is violated."""
    with SLOW_TAKEOVER(), pytest.raises(AssertionError, match="seed"):
        list(map(partial(dies_while_it_sends, journal=False), range(12)))


@pytest.mark.parametrize(
    ("variant", "group", "harm"), [(ANY_PART, "g1", "for nobody"), (ANY_NUMBER, "g0", "for number 1")]
)
def test_without_I9_gradients_of_another_part_are_counted(variant: Patch, group: str, harm: str) -> None:
    a_spare_steps_in(group)
    with variant(), pytest.raises(AssertionError, match=rf"I9 is violated.*{harm}"):
        a_spare_steps_in(group)


@pytest.mark.parametrize("seconds", [0.0, 8.0])
def test_without_R21_a_finished_job_is_trained_again(seconds: float) -> None:
    """While the others evaluate, and after that."""
    with VARIANTS["R21"].patch(), pytest.raises(AssertionError, match="R21 is violated"):
        dies_at_the_end(seconds).run_for(5.0)


def test_who_follows_only_the_quorum_before_goes_on_beside_three_groups() -> None:
    variant = VARIANTS["R9 chain"]
    assert replace(variant, caught_by="membership.test_open_quorums:test_R9_of_three_groups").catch()
