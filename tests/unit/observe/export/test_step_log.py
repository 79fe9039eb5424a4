"""The log of a training loop: who writes, when, and what."""

from __future__ import annotations

import pytest

from torchft_x.observe import EventLog
from torchft_x.observe.export import StepLog, track


class Manager:
    """Stand-in with the two members that a StepLog uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logged: list[dict[str, float]] = []

    def log(self, **numbers: float) -> None:
        self.logged.append(numbers)


def commit(step: int, members: tuple[str, ...]) -> None:
    """Emit what happens in a process whose Manager commits the step with these members."""
    log = EventLog(None, "trainer")
    log.emit("quorum", quorum=1, step=step - 1, members=[f"{m}:x" for m in members], healing=[])
    log.emit("commit", quorum=1, step=step - 1, participants=len(members))


def test_every_nth_step_and_the_last_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHFT_X_RUN_DIR", raising=False)
    manager = Manager("0/0")
    log = StepLog(manager, every=2, last=5)
    for step in range(1, 6):
        commit(step, ("0", "1"))
        log.step(step, 10.0 - step, tokens=8)
    assert log.participants == 2
    log.close("a line of the script's own")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" tokens/s")[0].rpartition("| ")[0] for line in lines[:3]] == [
        f"step {step:>5} | loss {10.0 - step:.4f} | groups 2 " for step in (2, 4, 5)
    ]
    assert manager.logged == [{"loss": 8.0}, {"loss": 6.0}, {"loss": 5.0}]
    assert lines[3] == "a line of the script's own"
    assert lines[4].startswith("done: ")


@pytest.mark.parametrize("manager", [Manager("1/0"), Manager("0/1"), None], ids=["group 1", "rank 1", "no Manager"])
def test_others_are_silent(manager: Manager | None, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(manager, every=1)
    commit(1, ("0", "1"))
    log.step(1, 1.0, tokens=8, label="step 1 | exchange 1")
    log.close()
    assert capsys.readouterr().out == ""
    assert manager is None or manager.logged == []


@pytest.mark.parametrize("where", ["tensorboard", "tensorboard:", "mlflow:x"])
def test_a_tool_that_is_not_known_is_named(where: str) -> None:
    with pytest.raises(ValueError, match=r"neither tensorboard:FOLDER nor wandb:PROJECT"):
        track(where)
