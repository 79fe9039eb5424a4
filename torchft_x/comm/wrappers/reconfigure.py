"""Reconfigure process groups without a Manager."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.handles import ReconfigureOptions
from torchft_x.comm.store.create import create_store_client
from torchft_x.durations import seconds
from torchft_x.errors import ConfigError


def reconfigure_with_store(
    pg: Any, store_addr: str, rank: int, world_size: int, timeout: float | timedelta = 60.0
) -> None:
    """Connect a group with new members, which meet at `store_addr` (``host:port/prefix``), within `timeout`.

    `timeout` stays the group's.
    Groups from elsewhere must have `get_reconfigure_handle` and `reconfigure`, as torch's own have from 2.14 on.
    Their members exchange handles in the store, so each call needs a prefix of its own. Raises `ConfigError` for any
    other object.
    """
    if isinstance(pg, ProcessGroup):
        pg.set_timeout(timeout)
        pg.configure(store_addr, "", rank, world_size)
        return
    if not (callable(getattr(pg, "reconfigure", None)) and callable(getattr(pg, "get_reconfigure_handle", None))):
        raise ConfigError(f"{type(pg).__name__} can't be configured; use a process group of torchft_x.")
    limit = timedelta(seconds=seconds(timeout))
    store = create_store_client(store_addr, limit)
    store.set(f"handle/{rank}", pg.get_reconfigure_handle())
    if rank == 0:
        store.set("uuid", str(secrets.randbits(63)))
    keys = ["uuid", *(f"handle/{member}" for member in range(world_size))]
    store.wait(keys, limit)
    number, *handles = (store.get(key).decode() for key in keys)
    pg.reconfigure(ReconfigureOptions(int(number), handles, limit)).wait()
