"""Who is here, since when away, heard last when."""

from __future__ import annotations

from math import inf

from torchft_x.core.presence import Presence


def test_who_never_came_is_away_for_ever() -> None:
    p = Presence()
    assert (p.here, p.stream, p.host, p.away_since, p.finished) == (False, None, "", None, None)
    assert p.absent_for(5.0) == inf
    p.leave(1, 5.0)
    assert p.away_since is None


def test_an_absence_begins_with_the_end_of_the_last_stream() -> None:
    p = Presence()
    p.arrive(1, "a", 1.0)
    p.arrive(2, "b", 2.0)  # it reconnects before the old stream is seen to end
    assert (p.stream, p.host) == (2, "b")
    p.leave(1, 3.0)
    assert (p.here, p.away_since, p.absent_for(9.0)) == (True, None, 0.0)
    p.leave(2, 4.0)
    assert (p.here, p.away_since, p.absent_for(9.0)) == (False, 4.0, 5.0)
    p.leave(2, 7.0)
    assert p.absent_for(9.0) == 5.0
    p.arrive(3, "a", 10.0)
    assert (p.here, p.away_since, p.absent_for(11.0)) == (True, None, 0.0)


def test_each_stream_is_heard_by_itself() -> None:
    p = Presence()
    p.arrive(1, "a", 1.0)
    p.arrive(2, "a", 2.0)
    p.receive(1, 5.0)
    p.receive(7, 6.0)
    assert p.heard == {1: 5.0, 2: 2.0}
    p.forgive(3.5, 7.0)
    assert p.heard == {1: 7.0, 2: 5.5}
