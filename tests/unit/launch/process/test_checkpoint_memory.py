"""Memory that a supervisor holds for its workers' states."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchft_x.core import memory_slot
from torchft_x.core.types import State
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory, limit_of_slot, memory_of_host


def open_here() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_worker_has_two_slots_that_take_nothing_yet() -> None:
    memory = CheckpointMemory(3)
    limit, *workers = memory.setting(1000).split(";")
    names = [name for worker in workers for name in worker.split(",")]
    assert (limit, len(workers), len(names), len(set(names))) == ("1000", 3, 6, 6)
    for name in names:
        pid, fd, tag = name.split("/")
        assert int(pid) == os.getpid()
        assert os.readlink(f"/proc/self/fd/{fd}") == f"/memfd:torchft_x-held-{tag} (deleted)"
        assert (os.fstat(int(fd)).st_size, os.get_inheritable(int(fd))) == (0, False)
    memory.close()


def test_the_newest_state_that_all_workers_have_left() -> None:
    memory = CheckpointMemory(2)

    def write(worker: int, slot: int, state: State, *, sealed: bool = True) -> None:
        fd = int(memory.names[worker][slot].split("/")[1])
        head = memory_slot.SlotHead(state, 10, 4, 100)
        body = bytearray(head.guarded + 100)
        head.write(memoryview(body))
        if sealed:
            memory_slot.seal(memoryview(body), head)
        os.pwrite(fd, body, 0)

    assert memory.newest() == State()
    for worker in (0, 1):
        write(worker, 0, State(5, 2))
    write(0, 1, State(8, 3))
    assert memory.newest() == State(5, 2)
    write(1, 1, State(8, 3), sealed=False)
    assert memory.newest() == State(5, 2)
    write(1, 1, State(8, 3))
    assert memory.newest() == State(8, 3)
    os.pwrite(int(memory.names[0][1].split("/")[1]), b"x", 4100)  # a bit that the seal guards
    assert memory.newest() == State(5, 2)
    os.ftruncate(int(memory.names[0][0].split("/")[1]), 4200)
    assert memory.newest() == State()
    memory.close()


def test_it_is_given_back() -> None:
    before = open_here()
    memory = CheckpointMemory(4)
    assert open_here() == before + 8
    memory.close()
    assert open_here() == before


def test_a_slot_gets_its_part_of_the_share() -> None:
    assert limit_of_slot(1000, 0.2, workers=2) == 50


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        (None, {}, None),  # there is no /proc
        ("0::/", {}, None),
        ("0::/", {"memory.max": "5000"}, 5000),  # a container, which sees its own group as the top
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/not/here", {"memory.max": "7000"}, 7000),
        ("9:memory,cpu:/a\n0::/", {"memory/a/memory.limit_in_bytes": "3000"}, 3000),
        ("3:cpuset:/a\n0::/", {"memory/a/memory.limit_in_bytes": "3000"}, None),
    ],
)
def test_a_control_group_may_allow_less_than_the_machine_has(
    tmp_path: Path, cgroup: str | None, limits: dict[str, str], expected: int | None
) -> None:
    if cgroup is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    for name, text in limits.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_of_host(tmp_path) == (expected or machine)
