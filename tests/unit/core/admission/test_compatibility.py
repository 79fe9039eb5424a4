"""Who may train together: groups that differ in what they have declared never get into one quorum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.scene import Scene, issued, member, of
from torchft_x.core.fingerprint import Fingerprint, describe, difference
from torchft_x.core.messages import Tick
from torchft_x.core.messages.lighthouse import Issue, Join, LighthouseEffect, Refuse
from torchft_x.core.types import AttemptId

A, B = (Fingerprint((describe("model", "1 tensors", [f"w ({n},)"]),)) for n in (1, 2))
DATA = describe("data set", "a.txt")


def refusals(effects: list[LighthouseEffect]) -> list[tuple[int | None, str]]:
    return [(r.session, r.sentence) for r in of(Refuse, effects)]


def pair() -> Scene:
    """Groups 0 and 1 in one quorum."""
    s = Scene()
    s.hello("0:x")
    s.hello("1:x")
    s.join("0:x", traits=A)
    assert issued(s.join("1:x", traits=A)) == [["0:x", "1:x"]]
    return s


class TestFirstQuorum:
    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (
                B,
                "its model has w (2,) where group 2's has w (1,); start every group with the same script and settings.",
            ),
            (
                Fingerprint((describe("model", "1 tensors", ["_orig_mod.w (1,)"]),)),
                "its model has _orig_mod.w (1,) where group 2's has w (1,); compile in every group or in none, or by "
                "model.compile(), which, unlike torch.compile(model), renames nothing.",
            ),
        ],
    )
    def test_who_has_waited_longest_counts(self, other: Fingerprint, said: str) -> None:
        s = Scene(min_replicas=2)
        for name in ("2:x", "1:x", "3:x"):
            s.hello(name)
        s.join("2:x", traits=A)
        s.now = 0.1
        [(session, sentence)] = refusals(s.join("1:x", traits=other))
        assert session == s.sessions["1:x"]
        assert sentence == f"Group 1 (host 1-x) can't train with group 2 (host 2-x): {said}"
        assert issued(s.join("3:x", traits=A)) == [["2:x", "3:x"]]

    @pytest.mark.parametrize(
        ("other", "lowest"), [("10:x", "9:x"), ("alpha:x", "7:x")]
    )  # a name without a number is last
    def test_at_the_same_instant_it_is_the_lowest_group(self, other: str, lowest: str) -> None:
        s = Scene(min_replicas=3)
        for name in (other, lowest):
            s.hello(name)
        s.join(other, traits=B)
        [(session, _)] = refusals(s.join(lowest, traits=A))
        assert session == s.sessions[other]

    def test_a_difference_is_not_forgotten_when_a_third_fits_both(self) -> None:
        s = Scene(min_replicas=4)
        s.arrive("0:x", traits=A)
        assert refusals(s.arrive("1:x", traits=Fingerprint((DATA,)))) == []
        assert [session for session, _ in refusals(s.arrive("2:x", traits=B))] == [s.sessions["2:x"]]
        s = Scene(min_replicas=4)
        s.arrive("0:x", traits=A)
        s.wait(6.0)
        s.arrive("1:x", traits=B)
        assert refusals(s.arrive("2:x", traits=Fingerprint((DATA,)))) == []
        assert [session for session, _ in refusals(s.arrive("0:x"))] == [s.sessions["1:x"]]

    def test_a_member_that_was_silent_meanwhile_is_compared_when_it_speaks_again(self) -> None:
        s = Scene(min_replicas=2)
        s.arrive("0:x", traits=A)
        s.wait(6.0)
        assert refusals(s.arrive("1:x", traits=B)) == []  # the only one who is known to live
        effects = s.heard("0:x")
        assert issued(effects) == []
        assert [session for session, _ in refusals(effects)] == [s.sessions["1:x"]]
        assert "min_replicas" in s.lighthouse.undecided


class TestRunningQuorum:
    def test_a_group_restarted_with_another_model_is_refused_while_others_train(self) -> None:
        s = pair()
        s.exited("0:x")
        s.hello("0:y", attempt_id=AttemptId(1))
        [(session, sentence)] = refusals(s.join("0:y", traits=B))
        assert session == s.sessions["0:y"]
        assert "Group 0 (host 0-y) can't train with group 1 (host 1-x)" in sentence
        assert issued(s.join("1:x", s.committed())) == [["1:x"]]

    def test_the_dead_do_not_hold_up_a_changed_model(self) -> None:
        s = Scene()
        s.arrive("0:x", traits=A)
        s.exited("0:x")
        s.hello("0:y", attempt_id=AttemptId(1))
        assert issued(s.join("0:y", traits=B)) == [["0:y"]]

    def test_a_member_that_is_away_is_neither_asked_nor_forgotten(self) -> None:
        """Its stream has broken; whether it lives is being found out. Until then nobody is refused for its sake."""
        s = Scene()
        s.arrive("0:x", traits=A)
        s.close("0:x")
        effects = s.arrive("1:x", traits=B)
        assert (refusals(effects), issued(effects)) == ([], [])
        s.hello("0:x")
        effects = s.join("0:x", s.committed())
        assert [session for session, _ in refusals(effects)] == [s.sessions["1:x"]]
        assert issued(effects) == [["0:x"]]

    def test_after_a_restart_a_newcomer_that_fits_is_not_refused_for_one_that_does_not(self) -> None:
        """Who trains has not declared again yet, so the newcomers do not count either."""
        before = pair()
        s = Scene(now=1.0, restarted=True)
        s.quorums = before.quorums
        assert refusals(s.arrive("2:x", traits=B)) == []
        assert refusals(s.arrive("3:x", traits=A)) == []  # before anybody has reported
        s.hello("0:x")
        s.hello("1:x")
        assert s.lighthouse.current is not None
        assert refusals(s.arrive("4:x", traits=A)) == []  # before anybody of the quorum has declared
        effects = s.join("0:x", s.committed(), traits=A)
        assert [session for session, _ in refusals(effects)] == [s.sessions["2:x"]]
        assert issued(s.join("1:x", s.committed(), traits=A)) == [["0:x", "1:x", "3:x", "4:x"]]

    def test_one_that_changes_what_it_declared_is_refused_and_the_others_go_on(self) -> None:
        s = pair()
        state = s.committed()
        [(_, sentence)] = refusals(s.join("0:x", state, traits=B))
        assert "has changed while it runs: its model has w (2,) where its former one has w (1,)" in sentence
        assert issued(s.join("1:x", state)) == [["1:x"]]

    def test_who_trains_is_refused_when_it_asks_and_not_before(self) -> None:
        s = Scene(min_replicas=2)
        s.hello("0:x")
        s.hello("1:x")
        s.join("0:x")
        assert issued(s.join("1:x", traits=A)) == [["0:x", "1:x"]]
        state = s.committed()
        assert refusals(s.join("0:x", state, traits=B)) == []  # the lower group counts, and group 1 still trains
        assert [session for session, _ in refusals(s.join("1:x", state))] == [s.sessions["1:x"]]
        s = Scene.started("0:x", "1:x", min_replicas=2)
        state = s.committed()
        s.now = 1.0
        s.join("1:x", state, traits=A)  # it does not matter who asks first
        s.now = 2.0
        assert [session for session, _ in refusals(s.join("0:x", state, traits=B))] == [s.sessions["1:x"]]

    def test_more_may_be_declared_later(self) -> None:
        s = pair()
        more = Fingerprint((*A.items, DATA))
        state = s.committed()
        assert refusals(s.join("0:x", state, traits=more)) == []
        assert issued(s.join("1:x", state, traits=more)) == [["0:x", "1:x"]]


def test_what_was_not_declared_is_not_compared() -> None:
    s = Scene(min_replicas=4, join_timeout=0.0)
    for name in ("0:x", "1:x", "2:x", "3:x"):
        s.hello(name)
    s.join("0:x", traits=A)
    s.join("1:x")
    s.join("2:x", traits=Fingerprint((DATA,)))
    (issue,) = of(Issue, s.join("3:x"))
    assert len(issue.quorum.members) == 4
    assert not hasattr(issue.quorum.members[0], "traits")  # they would travel with every step


def test_kinds_that_fit_each_other_are_no_reason_to_look_again() -> None:
    """A release that differs in words only; and a misfit is forgotten when its record is."""
    s = Scene()
    fits = Fingerprint((replace(A.items[0], words="one tensor"),))
    s.arrive("0:x", traits=A)
    assert refusals(s.arrive("1:x", traits=fits)) == []
    compatibility = s.lighthouse._compatibility
    assert not compatibility._differ
    assert len(refusals(s.arrive("2:x", traits=B))) == 1
    assert compatibility._differ
    s.wait(0.1, alive=("0:x", "1:x"))
    assert refusals(s.arrive("3:x", traits=A)) == []
    assert not compatibility._differ
    assert len(compatibility._kinds) == 2


@pytest.mark.parametrize(
    ("names", "address", "said"),
    [
        (("group_a:x", ":x"), "http://group_a-x", ":x can't train with group_a (host group_a-x): "),
        (("0:x", "1:x"), "http://[::1", "Group 1 can't train with group 0: "),  # an address that is none gives no host
    ],
)
def test_a_group_is_called_by_its_name(names: tuple[str, str], address: str, said: str) -> None:
    s = Scene(min_replicas=9)
    for name in names:
        s.hello(name)
    s.join(names[0], traits=A, address=address)
    s.now = 1.0
    [(_, sentence)] = refusals(s.join(names[1], traits=B, address="nowhere"))
    assert sentence.startswith(said)


# --- any order of events ---------------------------------------------------------------------------------------------

KINDS = [None, A, B, Fingerprint((DATA,)), Fingerprint((*A.items, describe("data set", "b.txt")))]
steps = st.lists(
    st.tuples(st.sampled_from(["join", "join", "new attempt", "close", "exit", "wait"]), st.integers(0, 3)), max_size=25
)


@settings(max_examples=200, deadline=None)
@given(steps, st.lists(st.sampled_from(KINDS), min_size=4, max_size=30), st.integers(1, 3))
def test_no_quorum_holds_two_that_differ(
    steps: list[tuple[str, int]], kinds: list[Fingerprint | None], min_replicas: int
) -> None:
    s = Scene(min_replicas=min_replicas)
    number = [0, 0, 0, 0]
    declared: dict[str, Fingerprint | None] = {}

    def name(group: int) -> str:
        return f"{group}:{number[group]}"

    for action, group in steps:
        effects: list[LighthouseEffect] = []
        if action == "new attempt" or name(group) not in s.sessions:
            number[group] += 1
            s.hello(name(group), attempt_id=AttemptId(number[group], 0.0, f"token-{name(group)}"))
            declared[name(group)] = kinds[(number[group] + group) % len(kinds)]
        elif action == "join":
            held = s.quorums.get(name(group))
            state = None if held is None else held.top
            join = Join(s.sessions[name(group)], member(name(group), state), traits=declared[name(group)])
            effects = s.feed(join)
        elif action == "close":
            s.close(name(group))
        elif action == "exit":
            s.exited(name(group))
        else:
            s.now += 2.0
            effects = s.feed(Tick())
        for issue in of(Issue, effects):
            known = [t for m in issue.quorum.members if (t := declared[m.replica_id]) is not None]
            assert all(difference(a, b) is None for a in known for b in known)
