"""Processes. What waits for any child runs in a process of its own, so that pytest's children are left alone."""

from __future__ import annotations

import os
import signal

from torchft_x.launch.process import process_tree


def test_a_parent_that_was_dead_before_we_looked() -> None:
    acted: list[int] = []
    process_tree.when_parent_dies(os.getppid() + 1, lambda: acted.append(1))
    assert acted == [1]


def test_names() -> None:
    assert process_tree.signal_name(signal.SIGKILL) == "SIGKILL"
    assert process_tree.signal_name(99) == "signal 99"
