"""Between processes of one host a state is copied from memory; whatever stands against it, it is fetched by streams."""

from __future__ import annotations

import os

import pytest

from torchft_x.transfer.shared_memory import SharedFile, allocate_buffer

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_not_open_it() -> None:
    buffer = allocate_buffer(1000)
    assert buffer.name is not None
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if SharedFile.open(buffer.name, 1000) is None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
