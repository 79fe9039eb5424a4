"""Restart rules: pure, time is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.process.restarts import AttemptEnd, GiveUp, RestartPolicy, RestartRules
from torchft_x.timing import TIMING


def failed(uptime: float = 1.0, *, own: bool = True, progress: bool = False, words: tuple[str, ...] = ()) -> AttemptEnd:
    code, reason = (1, "worker 0 exited with code 1") if own else (-9, "worker 0 killed by SIGKILL")
    return AttemptEnd(False, code, reason, own, progress, uptime, words)


def test_a_crash_loop_ends_with_the_scripts_own_words() -> None:
    restarts = RestartPolicy(RestartRules(loop=3))
    words = ("Traceback (most recent call last):", "NameError: name 'x' is not defined")
    assert isinstance(restarts.ended(failed(), 0.0), float)
    assert isinstance(restarts.ended(failed(), 1.0), float)
    decision = restarts.ended(failed(words=words), 3.0)
    assert decision == GiveUp(
        "3 quick exits in a row before a step was committed, the last: worker 0 exited with code 1: "
        "NameError: name 'x' is not defined"
    )


FRAME = '  File "train.py", line 3, in <module>'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("an old log line",), ": an old log line"),
        ((FRAME, "ValueError: same bug", "its second line"), ": ValueError: same bug"),
        ((FRAME, "RuntimeError: Error(s) in loading Net:", "\tMissing key 0.weight.", "\tmore"),
         ": RuntimeError: Error(s) in loading Net: Missing key 0.weight."),
        ((FRAME, "SystemExit", "what():  gone"), ": what():  gone"),
        ((FRAME, "KeyError: 1", FRAME, "torch.OutOfMemoryError: too much", "[rank0] a warning"),
         ": torch.OutOfMemoryError: too much"),
        ((), ""),
    ],
)  # fmt: skip
def test_the_exception_is_quoted_and_not_the_last_line_of_its_text(words: tuple[str, ...], said: str) -> None:
    assert failed(words=words).said == said


def test_what_commits_no_steps_is_not_blamed_for_it() -> None:
    restarts = RestartPolicy(RestartRules(loop=1, steps=False))
    decision = restarts.ended(failed(), 0.0)
    assert decision == GiveUp("1 quick exits in a row, the last: worker 0 exited with code 1")


def test_a_usage_error_is_not_tried_again_unless_it_has_worked_before() -> None:
    usage = replace(failed(words=("train.py: --data x: no such file.",)), code=2, reason="worker 0 exited with code 2")
    assert RestartPolicy(RestartRules()).ended(usage, 0.0) == GiveUp(
        "worker 0 exited with code 2, a mistake in its arguments or settings: train.py: --data x: no such file."
    )
    assert isinstance(RestartPolicy(RestartRules()).ended(replace(usage, progress=True), 0.0), float)
    assert isinstance(RestartPolicy(RestartRules()).ended(replace(usage, code=3), 0.0), float)


MISSING = "ModuleNotFoundError: No module named 'nowhere'"


def test_what_comes_again_whenever_the_script_is_started_is_not_tried_again() -> None:
    first = replace(failed(words=("Traceback", MISSING)), fault=MISSING)
    assert RestartPolicy(RestartRules()).ended(first, 0.0) == GiveUp(
        f"worker 0 exited with code 1 before it made a Manager: {MISSING}"
    )
    assert first.explained
    assert not failed().explained


def test_the_same_exception_at_the_start_is_tried_twice() -> None:
    """A file that isn't there yet may come."""
    absent, other = (replace(failed(), fault=f"FileNotFoundError: {name}") for name in ("a", "b"))
    restarts = RestartPolicy(RestartRules())
    assert isinstance(restarts.ended(absent, 0.0), float)
    assert isinstance(restarts.ended(other, 1.0), float)
    twice = "worker 0 exited with code 1 twice before it made a Manager: FileNotFoundError: b"
    assert restarts.ended(other, 2.0) == GiveUp(twice)
    restarts, late = RestartPolicy(RestartRules()), replace(absent, uptime=1.3 * TIMING.attempt_quick)
    assert [isinstance(restarts.ended(late, t), float) for t in (0.0, 50.0, 100.0)] == [True] * 3


def test_the_same_exception_after_the_end_is_tried_twice_however_long_the_training_was() -> None:
    export = replace(failed(3600.0, progress=True), fault="OSError: the store is away", after_end=True)
    restarts = RestartPolicy(RestartRules())
    assert isinstance(restarts.ended(export, 0.0), float)
    assert restarts.ended(export, 3600.0) == GiveUp(
        "worker 0 exited with code 1 twice after it had finished: OSError: the store is away"
    )
    misspelt = replace(export, fault="NameError: name 'modle' is not defined")
    assert isinstance(RestartPolicy(RestartRules()).ended(misspelt, 0.0), GiveUp)


def test_a_result_that_cannot_be_written_is_not_trained_again() -> None:
    unsaved = replace(
        failed(3600.0, progress=True, words=("train.py: m.pt was not saved (No space left on device).",)), code=73
    )
    assert RestartPolicy(RestartRules()).ended(unsaved, 0.0) == GiveUp(
        "worker 0 exited with code 1: it can't write its result: train.py: m.pt was not saved (No space left on device)."
    )
    assert unsaved.explained


def test_a_host_that_computes_wrong_results_gets_no_other_attempt() -> None:
    """However long it has trained before, and whatever budget is left."""
    faulty = replace(failed(3600.0, progress=True, words=("torchft_x: Its host computes wrong results.",)), code=71)
    assert RestartPolicy(RestartRules()).ended(faulty, 0.0) == GiveUp(
        "worker 0 exited with code 1: its host computes wrong results: torchft_x: Its host computes wrong results."
    )
    assert faulty.explained


def test_kills_from_outside_are_no_crash_loop_and_do_not_hide_one() -> None:
    restarts = RestartPolicy(RestartRules(loop=3, max_restarts=100))
    for i in range(5):
        assert isinstance(restarts.ended(failed(own=False), float(i)), float)
    restarts.ended(failed(), 10.0)
    restarts.ended(failed(own=False), 11.0)
    restarts.ended(failed(), 12.0)
    assert isinstance(restarts.ended(failed(), 13.0), GiveUp)


@pytest.mark.parametrize("good", [failed(progress=True), failed(uptime=31.0)])
def test_progress_or_a_long_attempt_breaks_the_row(good: AttemptEnd) -> None:
    restarts = RestartPolicy(RestartRules(loop=3, quick=30.0))
    restarts.ended(failed(), 0.0)
    restarts.ended(failed(), 1.0)
    assert isinstance(restarts.ended(good, 2.0), float)
    restarts.ended(failed(), 3.0)
    assert isinstance(restarts.ended(failed(), 4.0), float)


def test_pauses_grow_only_while_nothing_is_achieved() -> None:
    restarts = RestartPolicy(RestartRules(max_restarts=100, longest_pause=4.0))
    pauses = [restarts.ended(failed(own=False), float(i)) for i in range(6)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert restarts.ended(failed(progress=True), 10.0) == 0.0
    assert restarts.ended(failed(own=False), 11.0) == 0.0


def test_restarts_are_counted_within_a_sliding_hour() -> None:
    restarts = RestartPolicy(RestartRules(max_restarts=2))
    good = failed(uptime=100.0)
    counts = []
    for now in (0.0, 1800.0, 3600.0):  # at the last one the first is an hour old
        assert restarts.ended(good, now) == 0.0
        counts.append(restarts.count)
    assert counts == [1, 2, 2]
    decision = restarts.ended(good, 3601.0)
    assert decision == GiveUp("worker 0 exited with code 1 (2 restarts within the last hour)")


def test_no_restarts_at_all() -> None:
    decision = RestartPolicy(RestartRules(max_restarts=0)).ended(failed(uptime=100.0), 0.0)
    assert decision == GiveUp("worker 0 exited with code 1 (max_restarts is 0)")
    with pytest.raises(ConfigError, match="max_restarts"):
        RestartRules(max_restarts=-1)
