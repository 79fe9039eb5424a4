"""Options of a Manager: arguments, else environment variables, else defaults. They are checked once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x import env, net
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError
from torchft_x.timing import LONGEST_WAIT

DEFAULT_TIMEOUT = 60.0  # seconds, for all three timeouts; torchft's value
# Seconds that the ranks of a group wait for each other's votes. One of them may evaluate or save for minutes while the
# other groups go on. The supervisor ends a rank that hangs.
GROUP_TIMEOUT = 600.0
_OF_A_JOB = (env.REPLICA_GROUP_ID, env.NUM_REPLICA_GROUPS, env.RUN_DIR)
"""Variables of which any one means that this group belongs to a job."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options of one rank. Times are seconds. An argument overrides the variable named with it."""

    replica_id: str
    """REPLICA_GROUP_ID: group id, stable over restarts. On the wire a nonce of the attempt is added."""
    group_rank: int
    """RANK, 0 if unset: rank of this process in its group."""
    group_world_size: int
    """WORLD_SIZE, 1 if unset: number of ranks of the group."""
    timeout: float
    """TORCHFT_TIMEOUT_SEC: limit for reductions, healing and the vote between groups."""
    quorum_timeout: float
    """TORCHFT_QUORUM_TIMEOUT_SEC: limit for a quorum."""
    quorum_patience: float
    """Further seconds while something is heard about the wait (core.group.quorum_deadline); 0 if quorum_timeout is set."""
    connect_timeout: float
    """TORCHFT_CONNECT_TIMEOUT_SEC: limit for connecting to the store, the group server and the lighthouse."""
    lighthouse: str | None
    """TORCHFT_LIGHTHOUSE: address of the lighthouse; needed on group rank 0 only."""
    port: int
    """TORCHFT_MANAGER_PORT: port of the group server; 0 takes any free one."""
    host: str
    """TORCHFT_X_ADVERTISE_HOST, TORCHFT_X_ADVERTISE_INTERFACE: name or address by which other hosts reach this one."""
    store_host: str | None
    """MASTER_ADDR: host of the group's store; None if this process hosts it."""
    store_port: int
    """MASTER_PORT: port of the group's store; 0 takes any free one, for a group of one process."""
    agent_store: bool
    """TORCHELASTIC_USE_AGENT_STORE: whether torchrun hosts the store."""
    restart_count: int
    """TORCHELASTIC_RESTART_COUNT. It is part of the keys, because the store outlives torchrun's restarts."""
    token: str | None
    """TORCHFT_X_TOKEN or the content of TORCHFT_X_TOKEN_FILE; None if the run has no token."""
    attempt: int
    """Number of this start of the group, from 0; later ones are higher."""
    attempt_token: str
    """Name of this start in the supervisor's exit report."""
    run_dir: str | None
    """TORCHFT_X_RUN_DIR: directory for events; None if none are written."""
    min_replica_size: int
    """The larger of the argument and TORCHFT_X_MIN_REPLICAS: the job's minimum holds for each of its scripts."""
    commit_vote: bool = True
    """Whether groups vote with each other before each commit."""
    group_timeout: float = GROUP_TIMEOUT
    """Limit for the vote inside the group; equal to `timeout` if that was set."""
    memory_slots: str = ""
    """The supervisor's memory for copies of its workers' states; empty if there is none."""
    local_rank: int = 0
    """LOCAL_RANK: index of this rank's part of `memory_slots`."""
    alone: bool = False
    """Whether this group starts a lighthouse for itself: none is named, and no variable says that it is in a job."""
    straggler_timeout: float | None = None
    """TORCHFT_X_STRAGGLER_TIMEOUT: how much later another group may come; if None, core.training.step_clock decides."""

    def __post_init__(self) -> None:
        if self.group_world_size < 1:
            raise ConfigError(f"world_size (WORLD_SIZE) is {self.group_world_size}; a group has at least one rank.")
        if not 0 <= self.group_rank < self.group_world_size:
            raise ConfigError(
                f"rank (RANK) {self.group_rank} is not among the group's {self.group_world_size} ranks; both count "
                "the processes of one replica group, not of the job."
            )
        if self.group_rank == 0 and not self.lighthouse and not self.alone:
            raise ConfigError(
                f"no lighthouse address: set {env.LIGHTHOUSE} (http://HOST:PORT) or give lighthouse_addr to Manager."
            )
        if self.group_world_size > 1 and (self.store_host is None or self.store_port == 0):
            raise ConfigError(
                f"a group of {self.group_world_size} ranks needs the address of its store: start it with torchrun, or "
                f"set {env.MASTER_ADDR} and {env.MASTER_PORT}, or give store_addr and store_port to Manager."
            )

    def check_against(self, heartbeat_timeout: float) -> None:
        """Raise `ConfigError` if the quorum timeout can't go with the lighthouse's heartbeat timeout."""
        if self.quorum_timeout < heartbeat_timeout:
            raise ConfigError(
                f"quorum_timeout is {self.quorum_timeout:g} s, but the lighthouse takes a silent group for lost after "
                f"{heartbeat_timeout:g} s: this group would give up before one that hangs is left behind. Give Manager a "
                f"longer quorum_timeout ({env.QUORUM_TIMEOUT}), or the lighthouse a shorter --heartbeat_timeout_ms."
            )

    @property
    def key_prefix(self) -> str:
        """Prefix of this start's keys in the group's store."""
        return f"torchft_x/{self.replica_id}/{self.restart_count}"


def resolve(
    *,
    replica_id: str | None,
    rank: int | None,
    world_size: int | None,
    timeout: Seconds | None,
    quorum_timeout: Seconds | None,
    connect_timeout: Seconds | None,
    lighthouse_addr: str | None,
    port: int | None,
    hostname: str | None,
    store_addr: str | None,
    store_port: int | None,
    token: str | None,
    min_replica_size: int,
    commit_vote: bool = True,
    straggler_timeout: Seconds | None = None,
    environ: Mapping[str, str] | None = None,
) -> Options:
    """Return the Manager's arguments as `Options`. `environ` is os.environ unless given. Raises `ConfigError`."""

    def number(argument: int | None, name: str, default: int) -> int:
        return argument if argument is not None else env.read_int(name, default, environ) or 0

    def span(argument: Seconds | None, name: str) -> float:
        if argument is not None:
            return seconds(argument, f"timeout argument ({name})")
        return env.read_seconds(name, DEFAULT_TIMEOUT, environ) or DEFAULT_TIMEOUT

    attempt = env.read_attempt(environ)
    lighthouse = lighthouse_addr or env.read(env.LIGHTHOUSE, None, environ)
    fewest = max(min_replica_size, env.read_int(env.MIN_REPLICAS, 0, environ) or 0)
    alone = not lighthouse and fewest <= 1 and not any(env.read(name, None, environ) for name in _OF_A_JOB)
    given = timeout if timeout is not None else env.read(env.TIMEOUT, None, environ)
    quorum_limit = quorum_timeout if quorum_timeout is not None else env.read(env.QUORUM_TIMEOUT, None, environ)
    return Options(
        replica_id=replica_id if replica_id is not None else env.read(env.REPLICA_GROUP_ID, "", environ) or "",
        group_rank=number(rank, env.RANK, 0),
        group_world_size=number(world_size, env.WORLD_SIZE, 1),
        timeout=span(timeout, env.TIMEOUT),
        quorum_timeout=span(quorum_timeout, env.QUORUM_TIMEOUT),
        quorum_patience=LONGEST_WAIT if quorum_limit is None else 0.0,
        connect_timeout=span(connect_timeout, env.CONNECT_TIMEOUT),
        lighthouse=lighthouse,
        port=number(port, env.MANAGER_PORT, 0),
        host=net.advertise_host(hostname, environ, towards=lighthouse),
        store_host=store_addr if store_addr is not None else env.read(env.MASTER_ADDR, None, environ),
        store_port=number(store_port, env.MASTER_PORT, 0),
        agent_store=env.read(env.USE_AGENT_STORE, None, environ) == "True",
        restart_count=env.read_int(env.RESTART_COUNT, 0, environ) or 0,
        token=token if token is not None else env.read_token(environ),
        attempt=attempt.number,
        attempt_token=attempt.token,
        run_dir=env.read(env.RUN_DIR, None, environ),
        min_replica_size=fewest,
        alone=alone,
        commit_vote=commit_vote,
        memory_slots=attempt.memory_slots,
        local_rank=env.read_int(env.LOCAL_RANK, 0, environ) or 0,
        group_timeout=GROUP_TIMEOUT if given is None else span(timeout, env.TIMEOUT),
        straggler_timeout=(
            env.read_seconds(env.STRAGGLER_TIMEOUT, None, environ)
            if straggler_timeout is None
            else seconds(straggler_timeout, "straggler_timeout")
        ),
    )
