"""The end of a training loop, with and without a signal."""

from __future__ import annotations

import signal

import pytest

from torchft_x.train.leaving import Leaving


class Fake:
    """A Manager and a Checkpoint that write down what they are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def shutdown(self, *, wait: bool, finished: bool) -> None:
        self.told.append(f"shutdown wait={wait} finished={finished}")

    def finish(self) -> None:
        self.told.append("finish")

    def leave(self) -> None:
        self.told.append("leave")


def test_a_loop_that_is_done_saves_and_says_so() -> None:
    fake = Fake()
    with Leaving(fake, fake) as leaving:
        assert not leaving.requested()
    assert fake.told == ["finish", "shutdown wait=True finished=True"]


def test_a_signal_ends_the_loop_at_its_boundary_and_the_program_with_143() -> None:
    fake, before = Fake(), signal.getsignal(signal.SIGTERM)

    def train() -> None:
        with Leaving(fake, fake) as leaving:
            while not leaving.requested():
                signal.raise_signal(signal.SIGTERM)
                fake.told.append("the step's end")

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == 143
    assert fake.told == ["the step's end", "shutdown wait=False finished=False", "leave"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_in_the_last_step_comes_too_late() -> None:
    fake = Fake()
    with Leaving(fake) as leaving:
        assert not leaving.requested()
        signal.raise_signal(signal.SIGTERM)
    assert fake.told == ["shutdown wait=True finished=True"]


def test_after_an_exception_nothing_is_said() -> None:
    """A Manager that dies in the middle of a step must not seem to have left."""
    fake = Fake()
    with pytest.raises(ValueError, match="in the step"), Leaving(fake, fake):
        raise ValueError("in the step")
    assert fake.told == []
