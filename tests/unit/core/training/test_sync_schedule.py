"""The schedule of groups that train apart: what each inner step does, and what becomes of a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.training.sync_schedule import Act, Census, Settings, SyncSchedule
from torchft_x.errors import ConfigError, StepError

NOBODY, SOMEBODY, AGAIN = Census(0.0, False), Census(2.0, False), Census(1.0, True)


def begun(**settings: int) -> SyncSchedule:
    s = SyncSchedule(Settings(**{"sync_every": 4, **settings}))
    assert s.enter() is Act.ASK
    assert s.counted(NOBODY, behind=False) is Act.BEGIN
    assert s.begun(True) is Act.TRAIN
    return s


def exchange(s: SyncSchedule) -> list[Act]:
    """The acts of the inner steps until one is committed."""
    acts = []
    while True:
        acts.append(s.stepped())
        if acts[-1] is Act.ASK:
            assert s.counted(SOMEBODY, behind=False) is Act.SEND
            acts.append(s.sent())
        if acts[-1] is Act.FINISH:
            s.finished(True, moved=True)
            return acts


def test_progress_is_the_inner_steps_that_the_common_weights_stand_for_and_those_of_this_period() -> None:
    s = SyncSchedule(Settings(sync_every=6, fragments=2))
    assert s.progress == 0
    s.enter()
    s.healed(5)
    assert s.progress == 15
    s = begun(sync_every=6, fragments=2)
    exchange(s)
    exchange(s)
    s.stepped()
    assert s.progress == 7
    s = begun(delay=2)
    while s.stepped() is Act.TRAIN:
        pass
    assert s.counted(AGAIN, behind=False) is Act.SEND
    assert s.sent() is Act.FINISH  # the others have waited for their delay
    assert s.progress == 4


def test_training_that_goes_on_after_a_break_asks_for_nothing() -> None:
    s = begun()
    s.stepped()
    assert s.enter() is Act.TRAIN
    assert s.stepped() is Act.TRAIN


def test_after_an_exchange_there_is_nothing_to_send_until_the_next_inner_step() -> None:
    s = begun()
    exchange(s)
    assert not s.has_work
    s.stepped()
    assert s.has_work
    s.healed(3)  # a heal ends the group's own work
    assert not s.has_work
    s = SyncSchedule(Settings(sync_every=4, delay=3))
    s.enter()
    s.healed(2)
    assert s.counted(AGAIN, behind=True) is Act.SEND
    assert s.sent() is Act.FINISH


def test_an_exchange_may_be_asked_for_before_its_time_and_finished_before_its_time() -> None:
    s = begun(delay=2)
    assert s.now() is Act.ASK
    s.counted(SOMEBODY, behind=False)
    assert s.sent() is Act.TRAIN
    assert s.now() is Act.FINISH


def test_who_begins_in_a_running_job_goes_along_with_nothing() -> None:
    s = SyncSchedule(Settings(sync_every=6, fragments=2, delay=1))
    assert s.enter() is Act.ASK
    s.healed(5)
    assert not s.has_work
    assert s.counted(SOMEBODY, behind=True) is Act.SEND
    assert s.fragment == 1
    assert s.sent() is Act.TRAIN  # the others' inner steps in the background are its first
    assert s.stepped() is Act.FINISH
    assert s.finished(True, moved=True) is Act.TRAIN
    assert (s.exchanges, s.position) == (6, 0)


def test_a_failure_keeps_the_inner_work_and_is_tried_again_soon() -> None:
    s = begun(delay=1)
    [s.stepped() for _ in range(3)]
    s.counted(SOMEBODY, behind=False)
    s.sent()
    assert s.stepped() is Act.FINISH
    assert s.finished(False, moved=False) is Act.TRAIN
    assert s.has_work
    assert s.progress == 2
    assert s.stepped() is Act.ASK  # one inner step, then the delay's
    assert s.counted(SOMEBODY, behind=False) is Act.SEND
    assert s.sent() is Act.TRAIN
    assert s.stepped() is Act.FINISH


def test_a_failure_of_who_has_nothing_is_tried_again_at_once() -> None:
    s = SyncSchedule(Settings(sync_every=4))
    s.enter()
    s.healed(1)
    s.counted(SOMEBODY, behind=True)
    assert s.sent() is Act.FINISH
    assert s.finished(False, moved=False) is Act.ASK
    s.counted(None, behind=True)
    assert s.sent() is Act.FINISH
    s.finished(False, moved=False)
    assert s.counted(NOBODY, behind=True) is Act.BEGIN
    assert s.begun(False) is Act.ASK


def test_without_a_census_a_group_that_trained_fails_where_the_others_fail() -> None:
    s = begun()
    [s.stepped() for _ in range(4)]
    assert s.counted(None, behind=False) is Act.SEND
    fresh = SyncSchedule(Settings(sync_every=4))
    fresh.enter()
    assert fresh.counted(None, behind=False) is Act.BEGIN


def test_an_exchange_with_nothing_in_it_is_no_exchange() -> None:
    """Those who had something died, and a newcomer commits alone."""
    s = SyncSchedule(Settings(sync_every=4))
    s.enter()
    s.healed(3)
    s.counted(SOMEBODY, behind=True)
    s.sent()
    assert s.finished(True, moved=False) is Act.TRAIN
    assert (s.exchanges, s.position) == (3, 0)


def test_verbs_that_do_not_fit_change_nothing() -> None:
    s = SyncSchedule(Settings(sync_every=4))
    for verb in (
        s.stepped, s.sent, s.now, lambda: s.begun(True), lambda: s.counted(NOBODY, behind=False),
        lambda: s.finished(True, moved=True),
    ):  # fmt: skip
        with pytest.raises(StepError, match="not begun"):
            verb()
    s.enter()
    with pytest.raises(StepError, match="asking"):
        s.stepped()
    with pytest.raises(StepError, match="it has made -1 exchanges"):
        s.healed(-1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sync_every": 0}, "sync_every is 0; it must be 1 or more"),
        ({"fragments": 3}, "a multiple of the number of fragments"),
        ({"fragments": 0}, "a multiple of the number of fragments"),
        ({"delay": 4}, "fragment_sync_delay is 4"),
        ({"delay": -1}, "fragment_sync_delay is -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(**{"sync_every": 4, **wrong})


@given(data=st.data())
def test_whatever_fails_groups_of_a_quorum_send_the_same_fragment_and_count_no_work_twice(data: st.DataObject) -> None:
    """Several groups in lockstep quorums; each quorum may fail, and any group may be replaced by one that heals."""
    fragments = data.draw(st.integers(1, 3))
    period = data.draw(st.integers(1, 3))
    settings = Settings(sync_every=fragments * period, fragments=fragments, delay=data.draw(st.integers(0, period - 1)))
    groups = [SyncSchedule(settings) for _ in range(data.draw(st.integers(1, 3)))]
    acts = [g.enter() for g in groups]
    work = [[0] * fragments for _ in groups]  # inner steps not in the global weights
    done = 0
    for _ in range(data.draw(st.integers(1, 8))):
        for i, g in enumerate(groups):
            for _ in range(100):
                if acts[i] is Act.ASK:
                    break
                acts[i] = g.stepped()
                work[i] = [n + 1 for n in work[i]]
            else:
                raise AssertionError(f"{g} does not ask")
        if data.draw(st.booleans()):
            i = data.draw(st.integers(0, len(groups) - 1))
            if len(groups) > 1 or done:
                groups[i] = SyncSchedule(settings)
                groups[i].enter()
                groups[i].healed(done)
                work[i] = [0] * fragments
        assert len({(g.exchanges, g.fragment) for g in groups}) == 1
        weights = [float(g.has_work) for g in groups]
        assert weights == [float(w[g.fragment] > 0) for w, g in zip(work, groups, strict=True)]
        good = data.draw(st.booleans())
        census = Census(sum(weights), False) if good else None
        acts = [g.counted(census, behind=done > 0) for g in groups]
        if Act.BEGIN in acts:
            assert set(acts) == {Act.BEGIN} or not good
        for i, g in enumerate(groups):
            if acts[i] is Act.BEGIN:
                acts[i] = g.begun(good)
                continue
            acts[i] = g.sent()
            while acts[i] is Act.TRAIN:
                acts[i] = g.stepped()
                work[i] = [n + 1 for n in work[i]]
            assert acts[i] is Act.FINISH
            fragment = g.fragment
            acts[i] = g.finished(good, moved=good)
            if good:
                work[i][fragment] = 0
        if good and sum(weights):
            done += 1
        assert {g.exchanges for g in groups} == {done}


@pytest.mark.parametrize(
    ("settings", "acts", "turns"),
    [
        ({}, [Act.TRAIN] * 3 + [Act.ASK, Act.FINISH], [0, 0, 0]),  # at the end of each period
        ({"delay": 2}, [Act.TRAIN, Act.ASK, Act.TRAIN, Act.TRAIN, Act.FINISH], [0, 0, 0]),  # reduced meanwhile
        # every two inner steps, one of them in the background
        ({"sync_every": 6, "fragments": 3, "delay": 1}, [Act.ASK, Act.TRAIN, Act.FINISH], [0, 1, 2]),
    ],
)
def test_fragments_take_turns_and_training_goes_on_while_one_is_reduced(
    settings: dict[str, int], acts: list[Act], turns: list[int]
) -> None:
    s = begun(**settings)
    for turn in [*turns, turns[0]]:
        assert s.fragment == turn
        assert exchange(s) == acts
    assert s.exchanges == 4
