"""Configuration of a simulated cluster. All times are in virtual seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchft_x.core.data.options import DataOptions
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.timing import TIMING

Span = tuple[float, float]


def limits(alone: float) -> SilenceLimits:
    """Return limits of silence in about the proportions of the product's."""
    return SilenceLimits(alone=alone, host=0.4 * alone, stopped=0.4 * alone, busy=2.0 * alone, busy_steps=5.0)


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """Configuration of one simulated cluster.

    The defaults are short times in the proportions of the product's, so that much happens in a virtual minute.
    """

    groups: int = 3
    """Number of groups of ours, ``g0``, ``g1``, ..., each with a supervisor."""
    ranks: int = 1
    """Number of ranks of each group."""
    peers: int = 0
    """Number of clients of the peer, on the unary service: ``u0``, ... Never in a world with `init_sync`."""
    min_replica_size: int = 1
    """Fewest participants of a commit (I7)."""
    max_retries: int | None = None
    """Failed commits in a row before a trainer gives up."""
    async_quorum: bool = True
    """Ask for the quorum while the forward pass runs, as by default."""
    init_sync: bool = True
    """Begin with different weights in each group; the first quorum makes them equal."""
    spares: bool = False
    """Use FIXED_WITH_SPARES: at most `min_replica_size` groups contribute."""
    retry_quorum: bool = True
    """Let a trainer whose quorum did not come in time ask again. Otherwise it ends, and is started again."""

    lighthouse: LighthouseConfig = field(
        default_factory=lambda: LighthouseConfig(
            lease=8.0, lease_margin=1.0, give_up_after=12.0, silence=limits(1.0), join_timeout=0.1, boot_id="host"
        )
    )
    """Configuration of the first start of the lighthouse; later ones are told that they are not the first."""
    journal: bool = True
    """Let the lighthouse keep a journal for its successor. The journal survives the process, but not its host."""
    one_host: bool = True
    """All processes share the lighthouse's boot: a refused connect proves death."""
    timeout: float = 3.0
    """Seconds until a reduction, a heal or a vote times out."""
    quorum_timeout: float = 15.0
    """Seconds that a rank waits for a quorum."""
    endures: float = 0.0
    """Additional seconds that a rank waits while something is heard about the wait (core.group.quorum_deadline)."""
    rehearses: bool = False
    """Let a newcomer make its first step alone before it asks, if others train already."""
    connect_limit: float = 1.5
    """Seconds until configuring a process group times out."""
    keepalive: float = 3.0
    """Seconds without a packet after which either side gives a connection up."""
    welcome_timeout: float = 2.0
    """Seconds from a connect until the lighthouse's welcome must have come."""

    drift: float = 0.0
    """Deviation of clock rates: they lie between 1 - drift and 1 + drift."""
    latency: Span = (0.0001, 0.001)
    """Seconds that a message between hosts takes."""
    inside: Span = (0.00002, 0.0002)
    """Seconds that a message takes between processes of a host, or between threads of a process."""
    compute: Span = (0.02, 0.05)
    """Seconds of a forward and backward pass."""
    apart: float = 0.0
    """Most seconds between the ranks of a group at the beginning of a step, as their data arrives at different times.
    """
    uneven: float = 1.0
    """Ratio of the slowest group's compute time to that of a normal one, at most."""
    fetch: Span = (0.02, 0.3)
    """Seconds of copying the state."""
    startup: Span = (0.05, 0.3)
    """Seconds from the start of a process to its hello."""
    restart_pause: Span = (0.0, 0.5)
    """Seconds between two attempts of a group."""

    trace: int | None = 400
    """Number of trace lines that are kept; None: all."""

    commit_vote: bool = False
    """Let groups vote with each other before a commit (R12-R14). Never in a world with peers' clients."""
    runs_on: bool = False
    """Use grants over many steps: a step asks the lighthouse only at the end of a grant (R7, R16)."""
    standby: bool = False
    """Run a second lighthouse, at the site ``lh2``, that stands by; groups know both. Never in a world with peers'
    clients.
    """
    max_redo: int = 0
    """How often the same local gradients are reduced again (R15); 0: gradients of a step that does not commit are
    dropped.
    """
    memory: bool = False
    """Let supervisors hold copies of their groups' states (decision 51)."""
    data: DataOptions | None = None
    """How data is dealt. None: it is not."""
    samples: int = 40
    """Length of the data set."""
    streams: bool = False
    """Deal items of logical streams, one stream for each slot, in place of samples. Not with the policy `SHRINK`."""

    @property
    def settles(self) -> bool:
        """Whether `should_commit` asks for the next quorum itself when a step did not commit."""
        return self.commit_vote or self.max_redo > 0

    @property
    def needed(self) -> int:
        """Number of groups without which nobody trains."""
        return max(self.lighthouse.min_replicas, self.min_replica_size)

    @property
    def takes_over(self) -> float:
        """Seconds from the end of a lighthouse until another one serves and everybody has found it.

        Counted twice, because the lighthouse that takes over may be stopped.
        """
        return (
            2 * (TIMING.failover_ttl + TIMING.failover_margin + 2.0) + 2 * self.welcome_timeout if self.standby else 0.0
        )

    @property
    def mode(self) -> str:
        """Parts of the full protocol that are on, joined by "+", as a key of figures."""
        on = {"vote": self.commit_vote, "grants": self.runs_on, "standby": self.standby, "redo": self.max_redo > 0}
        on["memory"] = self.memory
        return "+".join(name for name, is_on in on.items() if is_on) or "off"

    @property
    def patience(self) -> float:
        """Seconds after the last fault within which all train together again (L1), if each end can be proven.

        The sum of the longest chain of waits, each of them once, and some steps. Nobody has to wait for a lease.
        """
        c = self.lighthouse
        waits = c.silence.alone + c.silence.busy + self.keepalive + self.welcome_timeout + self.timeout
        waits += self.connect_limit + c.join_timeout
        waits += c.grant_seconds + TIMING.promised if self.runs_on else 0.0
        waits += self.takes_over
        steps = (8 + self.rehearses) * (self.compute[1] * self.uneven + self.fetch[1])
        return waits + steps + 2 * (self.startup[1] + self.restart_pause[1]) + 2.0

    @property
    def long_patience(self) -> float:
        """Seconds as in `patience`, where a group may have to wait for a lease.

        The reason is a host lost with the supervisor on it, a lost journal of a lighthouse, or a standby.
        """
        c = self.lighthouse
        waits = c.lease + c.lease_margin + c.silence.alone + c.silence.busy + self.keepalive + self.welcome_timeout
        waits += 2 * (self.quorum_timeout + self.endures) + 4 * self.timeout + 2 * self.connect_limit
        waits += self.takes_over
        waits += 2 * c.grant_seconds if self.runs_on else 0.0
        waits += max(0.0, c.give_up_after - c.lease)
        return (
            2 * waits
            + 20 * (self.compute[1] * self.uneven + self.fetch[1])
            + 5 * (self.startup[1] + self.restart_pause[1])
            + 5.0
        )
