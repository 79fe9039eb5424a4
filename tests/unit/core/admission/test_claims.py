"""R1 and R22: what is believed of what members say of themselves."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, issued, member, of, quorum
from torchft_x.core.admission.claims import MOST_STEPS, impossible, set_aside, unfounded
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import Hello, Issue, Refuse
from torchft_x.core.types import Member, Prepared, Quorum, State

Q = 50  # the quorum that runs, at TOP
TOP = State(4, 40)
NOW = 1_800_000_000.0  # unix seconds
TO_COME = int(NOW * 1000) << 10  # an id of now


def at(name: str, step: int, committed_in: int = Q, **fields: object) -> Member:
    return member(name, State(step, committed_in), **fields)


def running(*names: str) -> Quorum:
    return quorum(*(at(n, TOP.step, TOP.committed_in) for n in names), id=Q)


def doubted(members: list[Member], current: Quorum | None, granted: int = 5) -> list[str]:
    return [m.replica_id for m, _ in unfounded(members, current, granted)]


class TestImpossible:
    """S6: whatever is believed here, all later ids and steps are above it."""

    @pytest.mark.parametrize("unix", [0.0, NOW])
    def test_what_can_be(self, unix: float) -> None:
        held = quorum(at("a:1", 7, TO_COME), id=TO_COME + 9, granted_through=1000)
        assert impossible(Hello(1, "a:1", state=State(7, TO_COME), quorum=held, granted_through=900), unix) == ""
        assert impossible(at("a:1", 7, TO_COME, prepared=Prepared(TO_COME, 8, 1)), unix) == ""

    @pytest.mark.parametrize(
        "lie",
        [
            Hello(1, "a:1", state=State(0, 1 << 61)),
            Hello(1, "a:1", state=State(MOST_STEPS + 1)),
            Hello(1, "a:1", granted_through=MOST_STEPS + 1),
            Hello(1, "a:1", quorum=quorum(at("a:1", 1), id=1 << 61)),
            Hello(1, "a:1", quorum=quorum(at("a:1", 1), config_id=1 << 61)),
            Hello(1, "a:1", quorum=quorum(at("a:1", 1), granted_through=1 << 61)),
            Hello(1, "a:1", quorum=quorum(at("a:1", 1, 1 << 61))),
            Hello(1, "a:1", quorum=quorum(at("a:1", MOST_STEPS + 1))),
            Hello(1, "a:1", quorum=quorum(at("a:1", 1, prepared=Prepared(1 << 61, 2, 1)))),
            at("a:1", 0, 1 << 61),
            at("a:1", 0, prepared=Prepared(1 << 61, 1, 1)),
            at("a:1", MOST_STEPS + 1),
        ],
    )
    def test_what_cant(self, lie: Hello | Member) -> None:
        assert impossible(lie, NOW).startswith("a:1 can't join: it names ")

    def test_the_liar_is_refused_and_the_others_go_on(self) -> None:
        s = Scene.started("a:1", "b:1", unix=NOW, join_timeout=0.0)
        before = s.lighthouse._quorum_state.next_id
        (refusal,) = of(Refuse, s.hello("c:1", state=State(0, (1 << 62) - 1)))
        assert "an id from a time that no clock shows" in refusal.sentence
        (refusal,) = of(Refuse, s.arrive("d:1", State(0, 1 << 61)))
        assert refusal.session == s.sessions["d:1"]
        (refusal,) = of(Refuse, s.unary("e:1", 1, step=1 << 61))
        assert refusal.call == 1
        assert s.lighthouse._quorum_state.next_id == before
        assert issued(s.join_all("a:1", "b:1", state=s.committed())) == [["a:1", "b:1"]]


class TestUnfounded:
    """R22."""

    def test_what_happens_every_day(self) -> None:
        q = running("a:1", "b:1")
        committed = [at("a:1", 9), at("b:1", 9)]
        assert doubted(committed, q) == []  # past the grant, without a session (R16)
        assert doubted([*committed, member("c:1")], q) == []
        assert doubted([*committed, at("c:1", 9)], q) == []
        assert doubted([at("a:1", 9)], q) == []  # the only one
        late = [at("a:1", 9), at("b:1", 8, prepared=Prepared(Q, 9, 1))]
        assert doubted(late, q) == []
        held = [at(n, 9, prepared=Prepared(Q, 10, 1), carried=(Q,)) for n in ("a:1", "b:1")]
        assert doubted([*held, at("c:1", 10)], q) == []  # what all of them are about to commit is known
        assert doubted([at("a:1", 10), at("b:1", 10**9)], None) == []  # nobody trains

    def test_a_newcomer_knows_no_newer_state(self) -> None:
        q = running("a:1", "b:1")
        members = [at("a:1", 9), at("b:1", 9)]
        assert doubted([*members, at("c:1", 10**9)], q) == ["c:1"]
        assert doubted([*members, at("c:1", 9, Q + 1)], q) == ["c:1"]
        assert doubted([*members, at("c:1", 10**9), at("d:1", 10**9)], q) == ["c:1", "d:1"]

    def test_where_none_of_them_is_left_nobody_can_contradict(self) -> None:
        assert doubted([at("c:1", 10**9)], running("a:1", "b:1")) == []
        assert doubted([at("a:1", 0, torn=True), at("c:1", 10**9)], running("a:1", "b:1")) == []

    def test_a_member_more_than_one_step_ahead_of_all_others(self) -> None:
        three, two = running("a:1", "b:1", "c:1"), running("a:1", "b:1")
        for step, wrong in ((10, []), (11, ["c:1"]), (10**9, ["c:1"])):
            assert doubted([at("a:1", 9), at("b:1", 9), at("c:1", step)], three, granted=100) == wrong
        assert doubted([at("a:1", 9), at("b:1", 11)], two, granted=100) == []  # who of the two errs?
        assert doubted([at("a:1", 9), at("b:1", 101)], two, granted=100) == ["b:1"]

    def test_who_is_behind_alone_does_not_overrule_the_others(self) -> None:
        three = running("a:1", "b:1", "c:1")
        assert doubted([at("a:1", 400), at("b:1", 400), at("c:1", 4, 40)], three) == []

    def test_who_heals_in_it_says_nothing_about_its_carriers(self) -> None:
        q = quorum(at("a:1", 400, 40), at("b:1", 0, 0), at("c:1", 0, 0), id=Q)
        assert doubted([at("a:1", 401), at("b:1", 0, 0), at("c:1", 0, 0)], q, granted=401) == []
        assert doubted([at("a:1", 401), at("b:1", 500), at("c:1", 0, 0)], q, granted=401) == ["b:1"]


class TestLighthouse:
    """The rules at work."""

    def test_peers_clients_refuse_one_with_a_billion_steps_and_train_on(self) -> None:
        """S2: one call ended the run of everybody else."""
        s = Scene(join_timeout=0.0)
        s.unary("p:1", 1)
        s.unary("q:1", 2, step=10**9)
        effects = s.unary("p:1", 3, step=1)
        (refusal,) = of(Refuse, effects)
        assert refusal.call == 2
        assert "which nobody knows of those that train" in refusal.sentence
        assert [i.calls for i in of(Issue, effects)] == [(3,)]

    def test_a_newcomer_of_ours_heals(self) -> None:
        s = Scene.started("a:1", "b:1", join_timeout=0.0)
        s.arrive("c:1", State(10**9, 3))
        effects = s.join_all("a:1", "b:1", state=s.committed())
        (issue,) = of(Issue, effects)
        assert [m.replica_id for m in issue.quorum.carriers] == ["a:1", "b:1"]
        assert issue.quorum.member("c:1") is not None
        (note,) = (n for n in of(Note, effects) if n.event == "doubted")
        assert note.text.endswith("start them again from it. It heals.")
        a, b = set_aside((at("a:1", 9), at("b:1", 99, prepared=Prepared(Q, 100, 1))), {"b:1"})
        assert (a.torn, b.torn, b.prepared) == (False, True, None)

    def test_before_anybody_trains_the_newest_checkpoint_of_ours_wins(self) -> None:
        s = Scene(min_replicas=3, join_timeout=0.0)
        s.arrive("a:1")
        s.arrive("b:1")
        assert [r.call for r in of(Refuse, s.unary("p:1", 1, step=10**9))] == [1]
        s = Scene(min_replicas=2, join_timeout=0.0)
        s.arrive("a:1", State(100, 3))
        (issue,) = of(Issue, s.arrive("b:1", State(120, 4)))
        assert [m.replica_id for m in issue.quorum.carriers] == ["b:1"]


def test_one_that_is_wrong_vouches_for_nobody() -> None:
    """Neither is the word of a newcomer better for it, nor that of another for being no carrier's."""
    here = [at("a:1", 5), at("b:1", 5), at("c:1", 100)]
    assert doubted([*here, at("d:1", 50)], running("a:1", "b:1", "c:1")) == ["c:1", "d:1"]
    members = (at(n, TOP.step, TOP.committed_in) for n in ("a:1", "b:1", "c:1"))
    healer = quorum(*members, at("h:1", 0, 0), id=Q)
    said = [at("a:1", 5), at("b:1", 5), at("c:1", 9), at("h:1", 8)]
    assert "c:1" in doubted(said, healer, granted=20)
