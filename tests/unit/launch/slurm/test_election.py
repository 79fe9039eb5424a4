from __future__ import annotations

from torchft_x.launch.slurm.watch.watcher import Election
from torchft_x.timing import TIMING


def test_one_of_two_asks_and_the_other_goes_on_when_its_note_stands_still() -> None:
    a, b = Election("a"), Election("b")
    assert a.mine("", 0.0)
    note = a.note()
    for t in range(1, 20):
        assert a.mine(note, float(t))
        assert not b.mine(note, float(t))
        note = a.note()
    assert not b.mine(note, 20.0)
    assert not b.mine(note, 20.0 + TIMING.watch_stale - 0.1)
    assert b.mine(note, 20.0 + TIMING.watch_stale)
    note = b.note()
    assert not a.mine(note, 24.0)  # it was stopped, and goes on


def test_a_note_from_before_keeps_nobody_for_long() -> None:
    turn = Election("a")
    assert not turn.mine("older 17", 5.0)
    assert turn.mine("older 17", 5.0 + TIMING.watch_stale)
