"""Which announced groups are absent: kept up to date and counted anew must be the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.membership.announced import AnnouncedGroups
from torchft_x.core.types import group_number, group_of

NAMES = ["train_0:a", "train_0:b", "other_0:a", "train_1:a", "x:a"]
GROUPS = ["train_0", "0", "1", "x", "None"]
events = st.one_of(
    st.tuples(st.just("announce"), st.sampled_from(GROUPS), st.booleans()),
    st.tuples(st.just("recount"), st.sampled_from(NAMES), st.booleans()),
)


@given(st.lists(events, max_size=30))
def test_absent(events: list[tuple[str, str, bool]]) -> None:
    presence, announced, here = AnnouncedGroups(), set(), set()
    for what, name, yes in events:
        getattr(presence, what)(name, yes)
        known = announced if what == "announce" else here
        (known.add if yes else known.discard)(name)
        groups = {group_of(r) for r in here} | {str(group_number(r)) for r in here}
        assert presence.absent == {g for g in announced if g not in groups}
        assert presence.announced == announced


def test_a_member_that_comes_and_goes_and_comes_again() -> None:
    presence = AnnouncedGroups()
    presence.announce("train_0", True)
    for here in (True, False, True, False):
        presence.recount("train_0:a", here)
        presence.recount("train_0:a", here)  # says nothing new
        assert presence.absent == (set() if here else {"train_0"})
