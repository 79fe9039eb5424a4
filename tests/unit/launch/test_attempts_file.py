"""What a supervisor says to whoever starts the next one."""

from __future__ import annotations

import pytest

from torchft_x.launch.workers.attempts_file import KEPT, EndedAttempt, died_with_it, ends_before, next_number, runs

A, B = EndedAttempt(3, "a", 1), EndedAttempt(4, "b", -9)


@pytest.mark.parametrize(
    ("said", "ends", "number", "died"),
    [
        (runs("5:c", [A, B]), [A, B, EndedAttempt(5, "c", -9)], 6, True),
        (runs("4", [A, B]), [A, B], 5, False),
        ("5:c", [EndedAttempt(5, "c", -9)], 6, True),
        ("5", [], 6, False),
        ("", [], None, False),
        ("x:c,4:b,5:c:d", [], None, True),
    ],
)
def test_all_ends_are_told_again(said: str, ends: list[EndedAttempt], number: int | None, died: bool) -> None:
    """The lighthouse may have been away while a supervisor died, and the next one, too (L3)."""
    assert (ends_before(said), next_number(said), died_with_it(said)) == (ends, number, died)


def test_only_the_newest_are_kept() -> None:
    many = [EndedAttempt(n, f"attempt-{n}", -9) for n in range(20)]
    assert ends_before(runs("20", many)) == many[-KEPT:]
