"""Copies of a state in memory that outlives its process: whole, or none."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from tests.torch.transfer.test_memory_slots import LIMIT, fill, same, state_dict
from tests.util import wait_for
from torchft_x.core.types import State
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.transfer.memory_slots import MemorySlot


@pytest.mark.parametrize("turn", range(4))
def test_a_process_that_is_killed_while_it_copies_leaves_one_of_its_two_slots_whole(turn: int) -> None:
    memory = CheckpointMemory(1)
    slots = [MemorySlot.open(name, LIMIT) for name in memory.names[0]]
    first, second = (slot for slot in slots if slot is not None)
    fill(first, 1.0)
    fill(second, 2.0)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # those of the parent are not here
        value = 3.0
        while True:  # until it is killed
            fill(first if value % 2 else second, value)
            value += 1.0
    os.waitpid(pid, os.WNOHANG)
    wait_for(lambda: (second.state or State()).step >= 4 + turn, 20)  # it is in the midst of it
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    whole = [slot for slot in (first, second) if slot.state is not None]
    assert whole
    for slot in whole:
        assert slot.state is not None
        assert same(slot.read(), state_dict(float(slot.state.step)))
    memory.close()
