"""The store where groups meet: what members get of it, and what a stranger gets, who is refused before anything else."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.torch.comm.test_meeting_store import (
    HOST,
    served,  # noqa: F401
)
from torchft_x.comm.store.create import (
    KeyedAddress,
)
from torchft_x.comm.store.server import StoreServer


def test_a_stranger_with_torchs_own_client_gets_nothing(served: tuple[StoreServer, KeyedAddress]) -> None:
    server, address = served
    with pytest.raises(RuntimeError):
        dist.TCPStore(HOST, address.port, None, False, timedelta(seconds=2), wait_for_workers=False).num_keys()
    assert len(server) == 0
