"""That a quorum must be waited for is known without looking at everybody, and only when it is so.

`test_random_walk` and tests/sim/scale check after every event that nothing could be formed that was not.
"""

from __future__ import annotations

import pytest

from tests.core.quorum.test_open_quorums import lose
from tests.core.scene import Scene, issued, of
from torchft_x.core.lighthouse import next_quorum
from torchft_x.core.messages.lighthouse import Refuse
from torchft_x.core.types import JoinReason, State


class Asked(Exception):
    pass


def never(situation: object) -> None:
    raise Asked


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `form` must not be asked."""
    monkeypatch.setattr(next_quorum, "form", never)


def test_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(min_replicas=3)
    forbid(monkeypatch)
    for name in "ab":
        s.hello(name)
        s.join(name)


def test_first_quorum_while_others_are_alive_or_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(join_timeout=2.0)
    s.announce("c")
    for name in "ab":
        s.hello(name)
    with monkeypatch.context() as m:
        forbid(m)
        s.join("a")
        s.now = 1.9
        s.join("b")  # c is announced
        s.heard("a")
    s.now = 2.0
    assert issued(s.heard("a")) == [["a", "b"]]


def test_half_of_those_alive_even_after_the_join_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(join_timeout=0.5)
    s.hello("a")
    s.hello("b")
    forbid(monkeypatch)
    s.join("a")
    s.now = 2.0
    s.heard("a")


def test_most_of_those_alive_before_the_join_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(join_timeout=2.0)
    for name in "abc":
        s.hello(name)
    with monkeypatch.context() as m:
        forbid(m)
        s.join("a")
        s.join("b")
        s.now = 1.9
        s.heard("a")
    s.now = 2.0
    assert issued(s.heard("a")) == [["a", "b"]]


def test_it_is_one_that_may_still_commit_who_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(boot_id="another host")
    s.start("a", "b")
    s.kill("a")
    s.kill("b")
    s.exited("b")
    s.hello("c")
    s.join("c")  # a is the one
    forbid(monkeypatch)
    s.hello("d")
    s.join("d")
    s.heard("c")


def test_newcomers_while_all_members_are_gone_but_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(lease=30.0, lease_margin=1.0, boot_id="another host")
    s.start("a", "b")
    s.kill("a")
    s.kill("b")
    s.hello("c")
    s.join("c")
    with monkeypatch.context() as m:
        forbid(m)
        s.hello("d")
        s.join("d")
        s.heard("c")
        s.exited("a")  # b is the one that is waited for
        s.now = 30.9
        s.heard("c")
    s.now = 31.0
    assert issued(s.heard("c")) == [["c", "d"]]


def test_the_last_one_that_is_waited_for_ends() -> None:
    s = Scene(boot_id="another host")
    s.start("a", "b")
    s.kill("a")
    s.kill("b")
    s.hello("c")
    s.join("c")
    s.exited("b")
    assert issued(s.exited("a")) == [["c"]]


def test_a_member_that_asks_after_all_ends_the_wait() -> None:
    s = Scene(boot_id="another host")
    s.start("a", "b")
    s.kill("a")
    s.kill("b")
    s.hello("c")
    s.join("c")
    s.hello("a")
    assert issued(s.join("a")) == [["a", "c"]]


def test_a_newcomer_ends_a_wait_for_enough_whoever_else_may_still_commit() -> None:
    """The one that carries on is here; nobody has to wait for the lease of the other."""
    s = Scene(min_replicas=2, boot_id="another host")
    s.start("a", "b")
    s.join_all("a", "b", state=s.committed())
    s.kill("b")
    s.join("a", s.committed(), JoinReason.FAILED)
    assert of(Refuse, s.unary("theirs", 1))  # it would have to heal across the libraries, and was the second
    s.hello("c")
    assert issued(s.join("c")) == [["a", "c"]]


def test_an_older_quorum_that_is_closed_without_anybody_asking_ends_the_wait() -> None:
    """q1={a, b} reached a only, q2={a, c} is not known to have reached a, so that c waits. Then a reports q2."""
    s = Scene()
    s.start("a:1", "b:1")
    lose(s, "b:1", alive=("a:1",))
    s.hello("c:1")
    s.join("c:1")
    assert issued(s.join("a:1", State(), JoinReason.FAILED)) == [["a:1", "c:1"]]
    newest = s.quorums["a:1"]
    lose(s, "a:1", alive=("c:1",))
    assert not issued(s.join("c:1", State(), JoinReason.FAILED))
    assert "may still commit" in s.lighthouse.undecided
    assert issued(s.hello("a:1", quorum=newest, lease_left=100.0)) == [["c:1"]]
