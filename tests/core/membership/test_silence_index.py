"""Who has been silent, against a look at everybody."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchft_x.core.membership.members import MemberRecord
from torchft_x.core.membership.silence_index import SilenceIndex
from torchft_x.core.types import Life

LIMIT = 1.5
NAMES = "abcde"
DEEDS = st.tuples(
    st.sampled_from(["hears", "lost", "found", "comes", "halts", "goes on", "nothing"]), st.sampled_from(NAMES)
)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.7, 1.5, 3.0]), DEEDS), max_size=40))
@settings(max_examples=300, deadline=None)
def test_it_says_what_a_look_at_everybody_would(deeds: list[tuple[float, tuple[str, str]]]) -> None:
    now, records, halted = 0.0, dict[str, MemberRecord](), set[str]()
    quiet = SilenceIndex(now)
    for wait, (deed, name) in deeds:
        now += wait
        record = records.get(name)
        if deed == "comes" and record is None:
            records[name] = MemberRecord(
                name, now - 1.0, life=Life(token=name)
            )  # a member of a quorum that was taken over
            quiet.expect(now - 1.0)
        elif record is None:
            continue
        elif deed == "hears":
            record.hear(now)
        elif deed == "lost":
            record.lost = "silent"
        elif deed == "found" and record.lost:
            record.lost = ""
            quiet.expect(record.heard)
        elif deed == "halts":
            halted.add(name)
        elif deed == "goes on":
            halted.discard(name)
        expected = [r for r in records.values() if not r.lost and (now - r.heard > LIMIT or r.life.token in halted)]
        assert quiet.look(records.values(), halted, now, LIMIT) == expected


class Roll(list[MemberRecord]):
    """Counts how often somebody looks at all."""

    looks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().__iter__()


def test_everybody_is_looked_at_only_when_somebody_may_have_become_silent() -> None:
    roll = Roll([MemberRecord("a", 0.0), MemberRecord("b", 0.0), MemberRecord("dead", 0.0)])
    quiet, now = SilenceIndex(0.0), 0.0
    for tick in range(1, 101):
        now = tick / 10
        if tick % 10 == 0:
            roll[0].hear(now), roll[1].hear(now)
        found = quiet.look(roll, (), now, LIMIT)
        assert [r.replica_id for r in found] == (["dead"] if now > LIMIT else [])
    assert 5 <= roll.looks <= 20


def test_at_the_limit_itself_nobody_is_silent_yet() -> None:
    record, quiet = MemberRecord("a", 0.0), SilenceIndex(0.0)
    assert quiet.look([record], (), 1.5, LIMIT) == []
    assert quiet.look([record], (), 2.0, LIMIT) == [record]
    record.hear(2.0)
    assert quiet.look([record], (), 3.5, LIMIT) == []


def test_whoever_is_lost_meanwhile_is_looked_for_no_more() -> None:
    record, quiet = MemberRecord("a", 0.0), SilenceIndex(0.0)
    assert quiet.look([record], (), 2.0, LIMIT) == [record]
    record.lost = "silent"
    assert quiet.look([record], (), 2.1, LIMIT) == []


def test_the_one_that_spoke_first_is_the_next_to_be_silent() -> None:
    first, second, quiet = MemberRecord("a", 1.0), MemberRecord("b", 2.0), SilenceIndex(0.0)
    assert quiet.look([first, second], (), 2.2, LIMIT) == []
    assert quiet.look([first, second], (), 2.6, LIMIT) == [first]
