from __future__ import annotations

from torchft_x.comm.gloo import device as devices


def test_leased_devices_differ_and_are_used_again() -> None:
    first, second = devices.lease("127.0.0.1"), devices.lease("127.0.0.1")
    assert first is not second
    assert first.abortable
    assert second.abortable
    assert set(first.addresses()).isdisjoint(second.addresses())
    assert len(first.addresses()) == 1, "the listening socket"
    devices.give_back(second)
    assert devices.lease("127.0.0.1") is second
    devices.give_back(first)
    devices.give_back(second)
