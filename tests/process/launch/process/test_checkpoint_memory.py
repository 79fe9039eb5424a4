"""Memory that a supervisor holds for its workers' states."""

from __future__ import annotations

import subprocess
import sys

from torchft_x.launch.process.checkpoint_memory import CheckpointMemory


def test_what_one_child_writes_another_one_reads() -> None:
    memory = CheckpointMemory(1)
    pid, fd, _ = memory.names[0][0].split("/")
    at = f"import os; fd = os.open('/proc/{pid}/fd/{fd}', os.O_RDWR); "
    write = [sys.executable, "-S", "-c", at + "os.write(fd, b'abc'); os.kill(os.getpid(), 9)"]
    assert subprocess.run(write, check=False).returncode == -9
    read = subprocess.run([sys.executable, "-S", "-c", at + "print(os.read(fd, 9))"], capture_output=True, check=True)
    assert read.stdout == b"b'abc'\n"
    memory.close()
