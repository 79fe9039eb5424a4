"""What a simulated cluster is made of. Times in (virtual) seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.timing import TIMING

Span = tuple[float, float]


def limits(alone: float) -> SilenceLimits:
    """In about the proportions of the product's."""
    return SilenceLimits(alone=alone, host=0.4 * alone, stopped=0.4 * alone, busy=2.0 * alone, busy_steps=5.0)


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The defaults are short times in the proportions of the product's, so that much happens in a virtual minute."""

    groups: int = 3
    """Groups of ours, ``g0``, ``g1``, ..., each with a supervisor."""
    ranks: int = 1
    """Ranks of each group."""
    peers: int = 0
    """Clients of the peer, on the unary service: ``u0``, ... Never in a world with `init_sync`."""
    min_replica_size: int = 1
    """Fewest participants of a commit (I7)."""
    max_retries: int | None = None
    """Failed commits in a row before a trainer gives up."""
    async_quorum: bool = True
    """The quorum is asked for beside the forward pass, as by default."""
    init_sync: bool = True
    """Initial weights differ between groups, and the first quorum makes them equal."""
    spares: bool = False
    """FIXED_WITH_SPARES: at most `min_replica_size` groups contribute."""
    retry_quorum: bool = True
    """A trainer whose quorum did not come in time asks again; otherwise it ends, and is started again."""

    lighthouse: LighthouseConfig = field(
        default_factory=lambda: LighthouseConfig(
            lease=8.0, lease_margin=1.0, give_up_after=12.0, limits=limits(1.0), join_timeout=0.1, boot_id="host"
        )
    )
    """Of the first life; the next ones are told that they are not the first."""
    journal: bool = True
    """A lighthouse writes down what the next one must know; that survives it, unless its host is lost."""
    one_host: bool = True
    """All processes share the lighthouse's boot: a refused connect proves death."""
    timeout: float = 3.0
    """Of reductions, heals and votes."""
    quorum_timeout: float = 15.0
    """Of a rank that asks."""
    endures: float = 0.0
    """Seconds more that it waits while the lighthouse is away, or waits for a lease (core.group.quorum_deadline)."""
    rehearses: bool = False
    """Who comes while others train makes its first step before it asks."""
    connect_limit: float = 1.5
    """Of configuring a process group."""
    keepalive: float = 3.0
    """After so long without a packet either side gives a connection up."""
    welcome_timeout: float = 2.0
    """From a connect to the lighthouse's welcome."""

    drift: float = 0.0
    """Clocks run at rates between 1 - drift and 1 + drift."""
    latency: Span = (0.0001, 0.001)
    """Of a message between hosts."""
    inside: Span = (0.00002, 0.0002)
    """Of a message between processes of a host, or threads of a process."""
    compute: Span = (0.02, 0.05)
    """Forward and backward."""
    apart: float = 0.0
    """Up to so many seconds lie between the ranks of a group where a step begins: their data comes when it comes."""
    uneven: float = 1.0
    """The slowest group takes up to so many times as long to compute."""
    fetch: Span = (0.02, 0.3)
    """Copying the state."""
    startup: Span = (0.05, 0.3)
    """From the start of a process to its hello."""
    restart_pause: Span = (0.0, 0.5)
    """Between two lives of a group."""

    trace: int | None = 400
    """Lines of trace that are kept; None: all."""

    commit_vote: bool = False
    """Groups vote with each other before a commit (R12-R14). Never in a world with peers' clients."""
    runs_on: bool = False
    """Grants over many steps: a step asks the lighthouse only at the end of a grant (R7, R16)."""
    standby: bool = False
    """A second lighthouse, at the site ``lh2``, that stands by; groups know both. Never in a world with peers' clients."""
    max_redo: int = 0
    """Times the same local gradients are reduced again (R15); 0: what does not commit is dropped."""
    memory: bool = False
    """Supervisors hold copies of their groups' states (decision 51)."""
    comes_back: float = 0.5
    """With a standby: see core.group.lighthouse_choice."""

    @property
    def settles(self) -> bool:
        """Whether `should_commit` asks for the next quorum itself when a step did not commit."""
        return self.commit_vote or self.max_redo > 0

    @property
    def needed(self) -> int:
        """Groups without which nobody trains."""
        return max(self.lighthouse.min_replicas, self.min_replica_size)

    @property
    def takes_over(self) -> float:
        """Seconds from the end of a lighthouse until another one serves and everybody has found it; twice, because one that takes
        over may be stopped."""
        return (
            2 * (TIMING.failover_ttl + TIMING.failover_margin + 2.0) + 2 * self.welcome_timeout + self.comes_back
            if self.standby
            else 0.0
        )

    @property
    def mode(self) -> str:
        """Which parts of the full protocol are on, for figures."""
        on = {"vote": self.commit_vote, "grants": self.runs_on, "standby": self.standby, "redo": self.max_redo > 0}
        on["memory"] = self.memory
        return "+".join(name for name, is_on in on.items() if is_on) or "off"

    @property
    def patience(self) -> float:
        """Within this time after the last fault everything must be well again (L1), if every end of a life can be proven:
        the longest chain of waits, each of them once, and some steps. Nobody has to wait for a lease."""
        c = self.lighthouse
        waits = c.silence.alone + c.silence.busy + self.keepalive + self.welcome_timeout + self.timeout
        waits += self.connect_limit + c.join_timeout
        waits += c.grant_seconds + TIMING.promised if self.runs_on else 0.0
        waits += self.takes_over
        steps = (8 + self.rehearses) * (self.compute[1] * self.uneven + self.fetch[1])
        return waits + steps + 2 * (self.startup[1] + self.restart_pause[1]) + 2.0

    @property
    def long_patience(self) -> float:
        """The same where somebody may have to wait for a lease: a host was lost with the supervisor on it, or what a
        lighthouse had written down; or there is a standby."""
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
