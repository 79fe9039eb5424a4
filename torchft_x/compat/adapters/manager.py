"""torchft's Manager: ours, with the undocumented behaviour on which scripts and torchtitan rely."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torchft_x import env
from torchft_x.core.heal import WorldSizeMode
from torchft_x.durations import Seconds
from torchft_x.train.manager import Manager as OurManager
from torchft_x.transfer.format.flatten import has_dtensors

_KEYS = ("step", "batches_committed", "data")  # the last only with an ElasticLoader, which torchft does not have


class Manager(OurManager):
    """`torchft_x.Manager` for scripts that were written for torchft.

    TORCHFT_TIMEOUT_SEC, TORCHFT_QUORUM_TIMEOUT_SEC, TORCHFT_CONNECT_TIMEOUT_SEC and TORCHFT_QUORUM_RETRIES beat the
    arguments, as in torchft. Where groups train apart (`LocalSGD`, `DiLoCo`) `current_step` counts exchanges.

    Args:
        ours: the arguments that only `torchft_x.Manager` has; the others are torchft's.
    """

    def __init__(
        self,
        pg: Any,
        load_state_dict: Callable[[Any], None] | None,
        state_dict: Callable[[], Any] | None,
        min_replica_size: int,
        use_async_quorum: bool = True,
        timeout: Seconds | None = None,
        quorum_timeout: Seconds | None = None,
        connect_timeout: Seconds | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        world_size_mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
        store_addr: str | None = None,
        store_port: int | None = None,
        lighthouse_addr: str | None = None,
        replica_id: str | None = None,
        port: int | None = None,
        hostname: str | None = None,
        heartbeat_interval: Seconds | None = None,
        checkpoint_transport: Any = None,
        init_sync: bool = True,
        max_retries: int | None = None,
        quorum_retries: int | None = None,
        **ours: Any,
    ) -> None:
        self._first_steps = 0  # committed steps that torchft does not count
        super().__init__(
            pg, load_state_dict, state_dict, min_replica_size, use_async_quorum,
            timeout=_chosen(env.TIMEOUT, timeout),
            quorum_timeout=_chosen(env.QUORUM_TIMEOUT, quorum_timeout),
            connect_timeout=_chosen(env.CONNECT_TIMEOUT, connect_timeout),
            rank=rank, world_size=world_size, world_size_mode=world_size_mode, store_addr=store_addr,
            store_port=store_port, lighthouse_addr=lighthouse_addr, replica_id=replica_id, port=port,
            hostname=hostname, heartbeat_interval=heartbeat_interval, checkpoint_transport=checkpoint_transport,
            init_sync=init_sync, max_retries=max_retries,
            quorum_retries=_chosen(env.QUORUM_RETRIES, quorum_retries), **ours,
        )  # fmt: skip

    def start_quorum(self, *args: Any, **kwargs: Any) -> None:
        if self.steps.role is None and not self.steps.waits and has_dtensors(self.context.full_state()):
            # FSDP2's model has whole tensors during a forward, so its state can be copied between steps only.
            self.steps.waits = True
        super().start_quorum(*args, **kwargs)

    def trains_apart(self) -> None:
        """Keep the first commit, in which `LocalSGD` and `DiLoCo` agree on the first weights, out of `current_step`."""
        self._first_steps = 1

    def current_step(self) -> int:
        """Return the number of committed steps, or of exchanges if groups train apart."""
        return max(0, super().current_step() - self._first_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return torchft's two numbers and the position in the data, if it is dealt.

        The quorum of the last commit is left out: it starts anew with a checkpoint.
        """
        return {key: value for key, value in super().state_dict().items() if key in _KEYS}

    def _manager_state_dict(self) -> dict[str, Any]:
        """Return the state that a heal copies, in torchft's form."""
        with self.context.state_dicts.read():
            return {"user": self.context.state_dicts.save(), "torchft": self.state_dict()}


def _chosen(variable: str, argument: Any) -> Any:
    return argument if env.read(variable) is None else None  # with None, the base class reads the variable


def get_timeout(timeout_sec_env: str | None, default_timeout_sec: timedelta) -> timedelta:
    """Return the time in an environment variable's value, in whole seconds, or the default if the value is None."""
    return default_timeout_sec if timeout_sec_env is None else timedelta(seconds=int(timeout_sec_env))


def extract_trailing_digits(s: str) -> int:
    """Return the number at the end of a name; 0 if there is none."""
    digits = s[len(s.rstrip("0123456789")) :]
    return int(digits) if digits else 0
