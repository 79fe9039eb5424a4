"""What a supervisor says to whoever starts the next one in its place."""

from __future__ import annotations

import pytest

from torchft_x import env
from torchft_x.launch.workers.lives_file import KEPT, EndedLife, died_with_it, ends_before, next_number, runs

A, B = EndedLife(3, "a", 1), EndedLife(4, "b", -9)


@pytest.mark.parametrize(
    ("said", "ends", "number", "died"),
    [
        (runs("5:c", [A, B]), [A, B, EndedLife(5, "c", -9)], 6, True),
        (runs("4", [A, B]), [A, B], 5, False),
        ("5:c", [EndedLife(5, "c", -9)], 6, True),
        ("5", [], 6, False),
        ("", [], None, False),
        ("x:c,4:b,5:c:d", [], None, True),
    ],
)
def test_all_ends_are_told_again(said: str, ends: list[EndedLife], number: int | None, died: bool) -> None:
    """The lighthouse may have been away while a supervisor died, and the next one, too (L3)."""
    environ = {env.LIFE_BEFORE: said}
    assert (ends_before(environ), next_number(environ), died_with_it(environ)) == (ends, number, died)


def test_only_the_newest_are_kept() -> None:
    many = [EndedLife(n, f"life-{n}", -9) for n in range(20)]
    assert ends_before({env.LIFE_BEFORE: runs("20", many)}) == many[-KEPT:]
