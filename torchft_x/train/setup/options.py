"""What a Manager needs to know: arguments, else variables, else defaults. Checked once, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x import env, net
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError

DEFAULT_TIMEOUT = 60.0  # seconds; the peer's, for all three
# Seconds a rank waits in all while the lighthouse says what for, or is away: a host or a pod is replaced meanwhile.
PATIENCE = 3600.0
# Seconds the ranks of a group wait for each other's votes. One of them may evaluate or save for minutes; the other groups go on
# meanwhile, and one that hangs is its supervisor's business.
GROUP_TIMEOUT = 600.0
_OF_A_JOB = (env.REPLICA_GROUP_ID, env.NUM_REPLICA_GROUPS, env.RUN_DIR)
"""Any of these says that other groups are meant to train with this one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times are seconds. An argument beats the variable named with it, the variable beats the default."""

    replica_id: str
    """Group id, stable over restarts (REPLICA_GROUP_ID). On the wire a nonce is added: one life of the group."""
    group_rank: int
    """RANK, 0 if unset."""
    group_world_size: int
    """WORLD_SIZE, 1 if unset."""
    timeout: float
    """TORCHFT_TIMEOUT_SEC. Reductions, healing, the vote between groups."""
    quorum_timeout: float
    """TORCHFT_QUORUM_TIMEOUT_SEC."""
    quorum_patience: float
    """Seconds more while it is known what is waited for (core.group.quorum_deadline); 0 where the user has set quorum_timeout."""
    connect_timeout: float
    """TORCHFT_CONNECT_TIMEOUT_SEC. Store, group server, lighthouse."""
    quorum_retries: int
    """TORCHFT_QUORUM_RETRIES."""
    lighthouse: str | None
    """TORCHFT_LIGHTHOUSE; needed on group rank 0 only."""
    port: int
    """TORCHFT_MANAGER_PORT; 0: any free one. Of the group server."""
    host: str
    """TORCHFT_X_ADVERTISE_HOST, TORCHFT_X_ADVERTISE_INTERFACE: by which name or address other hosts reach this one."""
    store_host: str | None
    """MASTER_ADDR: host of the group's store; None: this process hosts it."""
    store_port: int
    """MASTER_PORT; 0: any free one, for a group of one process."""
    agent_store: bool
    """TORCHELASTIC_USE_AGENT_STORE: torchrun hosts the store."""
    restart_count: int
    """TORCHELASTIC_RESTART_COUNT: the store outlives torchrun's restarts, its keys must not."""
    token: str | None
    """TORCHFT_X_TOKEN or the content of TORCHFT_X_TOKEN_FILE; None: open."""
    attempt: int
    """TORCHFT_X_ATTEMPT: number of this start of the group, from 0; later ones are higher."""
    life: str
    """TORCHFT_X_LIFE: names this start in the supervisor's exit report."""
    run_dir: str | None
    """TORCHFT_X_RUN_DIR: events go there; None: nowhere."""
    min_replica_size: int
    """The larger of the argument and TORCHFT_X_MIN_REPLICAS: the job's minimum holds for each of its scripts."""
    heartbeat_interval: float | None = None
    """As given; nothing but `check_against` looks at it."""
    commit_vote: bool = True
    """Groups vote with each other before each commit."""
    group_timeout: float = GROUP_TIMEOUT
    """Of the vote inside the group: `timeout`, where the user has set that."""
    memory_slots: str = ""
    """TORCHFT_X_MEMORY_SLOTS: where the supervisor holds copies of its workers' states; empty: nowhere."""
    local_rank: int = 0
    """LOCAL_RANK: which of them is this one's."""
    alone: bool = False
    """No lighthouse is named, and nothing says that this group belongs to a job: it starts one for itself, to try a script."""
    straggler_timeout: float | None = None
    """TORCHFT_X_STRAGGLER_TIMEOUT. How much later than this group another one may come; None: see core.training.step_clock."""

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
        """Raise `ConfigError` if a time can't go with the lighthouse's heartbeat timeout."""
        theirs = f"the lighthouse takes a silent group for lost after {heartbeat_timeout:g} s"
        if self.heartbeat_interval is not None and self.heartbeat_interval >= heartbeat_timeout:
            raise ConfigError(
                f"heartbeat_interval is {self.heartbeat_interval:g} s, but {theirs}; leave it out (the session with the "
                "lighthouse pings by itself), or give the lighthouse a longer --heartbeat_timeout_ms."
            )
        if self.quorum_timeout < heartbeat_timeout:
            raise ConfigError(
                f"quorum_timeout is {self.quorum_timeout:g} s, but {theirs}: this group would give up before one that "
                f"hangs is left behind. Give Manager a longer quorum_timeout ({env.QUORUM_TIMEOUT}), or the lighthouse "
                "a shorter --heartbeat_timeout_ms."
            )

    @property
    def key_prefix(self) -> str:
        """Of this start's keys in the group's store."""
        return f"torchft_x/{self.replica_id}/{self.restart_count}"


def resolve(
    *,
    replica_id: str | None,
    rank: int | None,
    world_size: int | None,
    timeout: Seconds | None,
    quorum_timeout: Seconds | None,
    connect_timeout: Seconds | None,
    quorum_retries: int | None,
    lighthouse_addr: str | None,
    port: int | None,
    hostname: str | None,
    store_addr: str | None,
    store_port: int | None,
    token: str | None,
    min_replica_size: int,
    heartbeat_interval: Seconds | None = None,
    commit_vote: bool = True,
    straggler_timeout: Seconds | None = None,
    environ: Mapping[str, str] | None = None,
) -> Options:
    """Arguments of the Manager as `Options`. `environ`: os.environ unless given. Raises `ConfigError`."""

    def number(argument: int | None, name: str, default: int) -> int:
        return argument if argument is not None else env.read_int(name, default, environ) or 0

    def span(argument: Seconds | None, name: str) -> float:
        if argument is not None:
            return seconds(argument, f"timeout argument ({name})")
        return env.read_seconds(name, DEFAULT_TIMEOUT, environ) or DEFAULT_TIMEOUT

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
        quorum_patience=PATIENCE if quorum_limit is None else 0.0,
        connect_timeout=span(connect_timeout, env.CONNECT_TIMEOUT),
        quorum_retries=number(quorum_retries, env.QUORUM_RETRIES, 0),
        lighthouse=lighthouse,
        port=number(port, env.MANAGER_PORT, 0),
        host=net.advertise_host(hostname, environ, towards=lighthouse),
        store_host=store_addr if store_addr is not None else env.read(env.MASTER_ADDR, None, environ),
        store_port=number(store_port, env.MASTER_PORT, 0),
        agent_store=env.read(env.USE_AGENT_STORE, None, environ) == "True",
        restart_count=env.read_int(env.RESTART_COUNT, 0, environ) or 0,
        token=token if token is not None else env.read_token(environ),
        attempt=env.read_int(env.ATTEMPT, 0, environ) or 0,
        life=env.read(env.LIFE, "", environ) or "",
        run_dir=env.read(env.RUN_DIR, None, environ),
        heartbeat_interval=None if heartbeat_interval is None else seconds(heartbeat_interval, "heartbeat_interval"),
        min_replica_size=fewest,
        alone=alone,
        commit_vote=commit_vote,
        memory_slots=env.read(env.MEMORY_SLOTS, "", environ) or "",
        local_rank=env.read_int(env.LOCAL_RANK, 0, environ) or 0,
        group_timeout=GROUP_TIMEOUT if given is None else span(timeout, env.TIMEOUT),
        straggler_timeout=(
            env.read_seconds(env.STRAGGLER_TIMEOUT, None, environ)
            if straggler_timeout is None
            else seconds(straggler_timeout, "straggler_timeout")
        ),
    )
