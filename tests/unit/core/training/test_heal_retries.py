"""When a group that can't copy the others' state gives up."""

from __future__ import annotations

import pytest

from torchft_x.core.training.heal_retries import LEAST, MOST, HealRetries


def tries(setbacks: HealRetries, times: list[float], sources: int = 1) -> list[bool]:
    return [bool(setbacks.failed(f"s{i % sources}", sources, "refused.", now)) for i, now in enumerate(times)]


def test_it_gives_up_when_several_heals_have_failed_for_long_enough() -> None:
    assert tries(HealRetries(60.0), [0.0, 1.0, 2.0, 59.9, 60.0]) == [False] * 4 + [True]


def test_slow_failures_must_be_several_too() -> None:
    assert tries(HealRetries(60.0), [100.0, 160.0, 220.0]) == [False, False, True]


@pytest.mark.parametrize(("sources", "needed"), [(1, LEAST), (LEAST + 2, LEAST + 2), (100, MOST)])
def test_every_source_is_tried_before(sources: int, needed: int) -> None:
    assert tries(HealRetries(1.0), [10.0 * i for i in range(needed)], sources) == [False] * (needed - 1) + [True]


def test_a_good_heal_ends_the_row() -> None:
    setbacks = HealRetries(1.0)
    tries(setbacks, [0.0, 5.0])
    setbacks.over()
    assert tries(setbacks, [6.0, 7.0, 8.0]) == [False, False, True]


def test_the_sentence_names_the_sources_the_last_reason_and_what_to_do() -> None:
    setbacks = HealRetries(1.0)
    for now, source in enumerate("aba"):
        sentence = setbacks.failed(f"{source}:1", 2, f"no route {now}.", 10.0 * now)
    assert sentence.startswith(
        "3 heals in a row have failed within 20 s, from a:1, b:1; the last: no route 2. This group"
    )
    assert "torchft_x doctor" in sentence
