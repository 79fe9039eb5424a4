from __future__ import annotations

import os

from torchft_x.comm.gloo import device as devices


def test_forked_child_touches_nothing() -> None:
    device = devices.lease("127.0.0.1")
    child = os.fork()
    if child == 0:
        fine = not device.own and not device.abortable and device.shut() == 0 and device.addresses() == []
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    devices.give_back(device)
