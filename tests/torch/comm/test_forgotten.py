"""Owners that are garbage: their ends come, on a thread of their own, wherever the collector was at work."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.torch.comm.members import configure
from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x.comm import rebuilt
from torchft_x.comm.gloo import device
from torchft_x.comm.gloo import group as gloo
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.rebuilt import end_when_forgotten
from torchft_x.comm.subprocess.group import ProcessGroupBabyGloo


class Owner:
    """Garbage only to the collector."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def collected_under(lock: Any) -> None:
    """Collect in a thread that holds `lock`: the collector must not wait for a lock of its own thread."""

    def collect() -> None:
        with lock:
            gc.collect()

    background(collect).result(scaled(10))


def test_what_could_not_be_ended_is_kept(by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the exit of the interpreter, which starts no threads any more."""

    def start(*args: object) -> None:
        raise RuntimeError("no")

    end = lambda: None  # noqa: E731
    owner = Owner()
    end_when_forgotten(owner, end)
    monkeypatch.setattr(rebuilt._thread, "start_new_thread", start)
    del owner
    gc.collect()
    assert rebuilt._kept.pop() is end


@pytest.mark.parametrize("lock", [gloo._birth, device._lock], ids=["birth", "devices"])
def test_a_group_is_forgotten_under_any_lock(lock: Any, by_hand: None) -> None:
    """Found in CI: a collection inside of `thread.start()` ended a group, which wanted to start a thread."""
    group: Any = ProcessGroupGloo(host="127.0.0.1")
    group.me, state = group, group._generations
    group.configure("", "a", 0, 1)
    del group
    collected_under(lock)
    wait_for(lambda: state._device is None, what="its device to be given back")


def test_a_groups_child_is_forgotten_under_its_lock(by_hand: None, meeting: Callable[[], str]) -> None:
    groups: list[Any] = [ProcessGroupBabyGloo(scaled(60), host="127.0.0.1") for _ in range(2)]
    configure(groups, meeting(), 1)
    child = groups[1]._present
    groups[1].me = groups[1]
    del groups[1]
    collected_under(child._lock)
    wait_for(lambda: child.error is not None, what="its child to be ended")
    assert str(child.error) == "the group was forgotten"
    groups[0].shutdown()
