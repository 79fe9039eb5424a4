"""Every rule that was once left out: without it the explorer finds the harm, with it it does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.core.quorum import test_open_quorums
from tests.sim.hunt import hunt
from tests.sim.test_protocol import a_spare_steps_in
from tests.sim.test_world import dies_at_the_end, dies_while_it_sends
from tests.sim.untimed.search import Search
from tests.sim.variants import ANY_NUMBER, ANY_PART, ONE_BEFORE, SLOW_TAKEOVER, VARIANTS, Patch, Variant
from torchft_x.core.quorum import rule

SLOW = {
    "vote off",
    "step alone",
    "R14 adopt",
    "R9a healed",
    "R13",
    "R3",
    "late grant",
    "R8 lease",
}  # more than about 2 s


@pytest.mark.parametrize(
    "variant", [pytest.param(v, id=v.name, marks=[pytest.mark.slow] * (v.name in SLOW)) for v in VARIANTS.values()]
)
@pytest.mark.timeout(600)
def test_a_variant_is_found(variant: Variant) -> None:
    catch, tale = hunt(variant)
    assert catch.found in variant.finds, tale
    assert catch.seconds < 60


@pytest.mark.parametrize(
    "name", ["R1", "R4", "R7", "R8", "R2/R9b", "expired", pytest.param("R21", marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)
def test_with_the_rule_there_is_nothing_to_be_found(name: str) -> None:
    report = Search(VARIANTS[name].rules).explore(seconds=120)
    assert report.complete
    assert not report.findings


def test_a_patch_is_taken_back() -> None:
    before = rule._heirs
    with VARIANTS["R9a any"].applied():
        assert rule._heirs is not before
    assert rule._heirs is before


def test_without_the_word_of_those_that_never_received_it_a_takeover_takes_a_lease() -> None:
    """R8, of a lighthouse that can't read what was written down. In virtual time: the explorer knows no seconds."""
    with SLOW_TAKEOVER(), pytest.raises(AssertionError, match="seed"):
        list(map(partial(dies_while_it_sends, ledger=False), range(12)))


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
    with VARIANTS["R21"].applied(), pytest.raises(AssertionError, match="R21 is violated"):
        dies_at_the_end(seconds).run_for(5.0)


@pytest.mark.parametrize("told", [test_open_quorums.test_R9_of_two_groups, test_open_quorums.test_R9_of_three_groups])
def test_who_follows_only_the_quorum_before_goes_on_beside_others(told: Callable[[], None]) -> None:
    told()
    with ONE_BEFORE(), pytest.raises(AssertionError, match=r"go on|goes on"):
        told()
