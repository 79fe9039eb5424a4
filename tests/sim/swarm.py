"""Random runs: a seed becomes a cluster and a schedule of faults, and each run ends with a check of liveness (L1).

Each run turns a random subset of the fault kinds on, as few kinds that repeat often find failures that all kinds
together hide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from tests.sim.base import Rng
from tests.sim.config import WorldConfig, limits
from tests.sim.ending import still_busy
from tests.sim.faults import KINDS, Fault, arm, strike
from tests.sim.kinds.processes import AROUND_RESTART
from tests.sim.kinds.traps import POINTS, VOTE_POINTS
from tests.sim.supervisor_node import SupervisorNode
from tests.sim.world import World
from torchft_x.core.data.options import DataOptions, Policy, Tail
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.timing import TIMING

FAULT_TIME = (6.0, 20.0)
"""Shortest and longest time in seconds during which faults happen."""
STEPS_AFTER = 3
"""Number of steps that all must commit once they are together again (L1)."""
STANDBY = 0.15
"""Probability that a run has a second lighthouse (decision 45). `--standby` of scripts/soak and of tests.sim.run sets
it.
"""
LATER, LATEST, NEWEST = (
    ("deaths_around_restart", "flapping"),
    ("training_ends", "second_thoughts"),
    ("hang_first", "stall_fetch"),
)
"""Kinds added after seeds had been written down. They must not change the meaning of these seeds except by themselves.
"""
LATER_SHARE, LATEST_SHARE, NEWEST_SHARE = 0.3, 0.15, 0.3
"""Probability of each of these kinds in a run."""
MEMORY = 0.3
"""Probability that supervisors hold copies in a run (decision 51)."""
STREAMS = 0.3
"""Probability that dealt data are items of streams."""
DATA = 0.6
"""Probability that data is dealt in a run in which gradients are reduced again: their slots decide there, not their
numbers. In other runs nothing but the check of I10 depends on the data, so it is always dealt."""
OF_SUPERVISORS = ("supervisor_dies",)
"""Kinds for runs in which supervisors die, too."""
OF_MEMORY = ("crash_all",)
"""Kinds for runs in which supervisors hold copies; some of them in each."""
OF_LINKS = ("bad_link",)
LINK_BREAKS = 0.25
"""Probability that a link breaks at the end of a run (`check_bad_link`)."""
OF_LINKS_SHARE = 0.15
"""Probability that a link between two groups breaks in a run, for long or again and again."""
OF_A_STANDBY = ("shared_gone", "holder_stops_sending", "holder_lost")
"""Kinds for runs with a second lighthouse; some of them in each."""
AROUND_THE_END = [
    "crash",
    "crash",
    "crash_rank",
    "join",
    "lighthouse",
    "lighthouse",
    "cut",
    "pause",
    "power",
    "part",
    "leave",
]
"""Kinds that may happen while a job ends."""
_LEASES = (3.0, 8.0, 20.0)
_LONG_LEASE = 60.0  # longer than any recovery may take where every end can be proven (L1)
_LONGEST = 10.0  # seconds that one fault lasts, at most


@dataclass
class Total:
    """Figures of one run, or the sums of many."""

    runs: int = 0
    events: int = 0
    commits: int = 0
    quorums: int = 0
    lineages: int = 0
    virtual_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)  # runs, by the parts of the full protocol that were on
    figures: Counter[str] = field(default_factory=Counter)  # outcomes of steps that did not commit at once

    def merge(self, other: Total) -> None:
        for name, more in vars(other).items():
            setattr(self, name, getattr(self, name) + more)

    def __str__(self) -> str:
        kinds, modes, figures = (
            ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
            for counter in (self.faults, self.modes, self.figures)
        )
        return (
            f"{self.runs} runs, {self.faults.total()} faults, {self.events} events, {self.commits} commits, "
            f"{self.quorums} quorums, {self.lineages} new lineages, {self.virtual_seconds:.0f} virtual seconds\n"
            f"faults: {kinds}\nruns: {modes}\nsteps: {figures}"
        )


def scenario(seed: int) -> tuple[WorldConfig, tuple[Fault, ...]]:
    """Return the cluster and the faults that this seed stands for."""
    rng = Rng(seed ^ 0x5EED)
    config = _config(rng)
    end = rng.uniform(*FAULT_TIME)
    kinds = rng.some(
        sorted(set(KINDS) - {*LATER, *LATEST, *NEWEST, *OF_A_STANDBY, *OF_MEMORY, *OF_SUPERVISORS, *OF_LINKS}), 0.3
    ) or ["crash"]
    mean = rng.choose((0.2, 0.6, 2.0))  # seconds between two faults
    faults, at, joined = [], 1.0 + rng.random(), 0
    while at < end:
        kind = rng.choose(kinds)
        if kind == "join":
            joined += 1
            if joined > 2:
                kind = "crash"
        faults.append(_fault(rng, config, at, kind))
        at += rng.uniform(0.0, 2.0 * mean) if not rng.chance(0.15) else 0.001
    for salt, add in _ADDED.items():
        config, faults = add(Rng(seed ^ salt), config, faults, end)
        faults = sorted(faults, key=lambda fault: fault.at)
    return config, tuple(faults)


def _later(rng: Rng, config: WorldConfig, faults: list[Fault], end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add deaths around a restart, and sessions that flap: to the other faults, or instead of them."""
    kinds = rng.some(LATER, LATER_SHARE)
    if kinds and rng.chance(0.3):
        faults = []
    for kind in kinds:
        faults += _several(rng, config, kind, 4, end)
    if kinds and not config.standby and rng.chance(0.5):
        house = replace(config.lighthouse, lease=_LONG_LEASE, give_up_after=1.5 * _LONG_LEASE)
        config = replace(config, lighthouse=house)
    return config, faults


def _latest(rng: Rng, config: WorldConfig, faults: list[Fault], end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add the end of the training, with other faults around it, and scripts that throw decided steps away."""
    kinds = rng.some(LATEST, LATEST_SHARE)
    if "training_ends" in kinds and not config.peers:
        faults = [] if rng.chance(0.3) else faults
        ends = _fault(rng, config, rng.uniform(1.0, end), "training_ends")
        around = [_fault(rng, config, ends.at + (ends.seconds + 1.0) * rng.random(), rng.choose(AROUND_THE_END))
                  for _ in range(rng.below(5))]  # fmt: skip
        faults = [*faults, ends, *around]
        # A group that waits for the end of a job is notified after some time, and must not give up before.
        config = replace(config, quorum_timeout=max(config.quorum_timeout, 15.0))
    if "second_thoughts" in kinds:
        faults = [*faults, *_several(rng, config, "second_thoughts", 6, end)]
    return config, faults


def _newest(rng: Rng, config: WorldConfig, faults: list[Fault], _end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add newcomers that hang, in a cluster in which newcomers may make their first step alone."""
    kinds = rng.some(NEWEST, NEWEST_SHARE)
    more = [fault for kind in kinds for fault in _several(rng, config, kind, 3, _last(faults))]
    return replace(config, rehearses=rng.chance(0.7)) if kinds else config, faults + more


def _memory(rng: Rng, config: WorldConfig, faults: list[Fault], _end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add copies held by supervisors, and faults that kill all workers at once. Sometimes lengthen the join timeout."""
    if not rng.chance(MEMORY):
        return config, faults
    more = _several(rng, config, "crash_all", 4, _last(faults))
    house = replace(config.lighthouse, join_timeout=rng.choose((config.lighthouse.join_timeout, 2.0)))
    return replace(config, memory=True, lighthouse=house), faults + more


def _take_overs(rng: Rng, config: WorldConfig, faults: list[Fault], _end: float) -> tuple[WorldConfig, list[Fault]]:
    kinds = [rng.choose(OF_A_STANDBY) for _ in range(rng.below(4))] if config.standby else []
    return config, faults + [_fault(rng, config, rng.uniform(1.0, _last(faults)), kind) for kind in kinds]


def _several(rng: Rng, config: WorldConfig, kind: str, most: int, end: float) -> list[Fault]:
    return [_fault(rng, config, rng.uniform(1.0, end), kind) for _ in range(1 + rng.below(most))]


def _last(faults: list[Fault]) -> float:
    return max((fault.at for fault in faults), default=FAULT_TIME[0]) + 1.0


def _apart(rng: Rng, config: WorldConfig, faults: list[Fault], end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add ranks of a group that begin a step one after the other, and a lease that outlives a lighthouse's absence."""
    if config.ranks == 1 or config.standby or not rng.chance(0.5):
        return config, faults
    house = replace(config.lighthouse, lease=_LONG_LEASE, give_up_after=1.5 * _LONG_LEASE)
    return replace(config, apart=rng.choose((0.05, 0.3)), lighthouse=house), faults


def _supervisors(rng: Rng, config: WorldConfig, faults: list[Fault], end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add supervisors that die with their groups, around restarts of the lighthouse, and a long lease."""
    if config.peers or config.standby or not rng.chance(0.3):
        return config, faults
    kinds = ("supervisor_dies", "supervisor_dies", "lighthouse", "crash", "crash_all")
    more = [_fault(rng, config, rng.uniform(1.0, end), rng.choose(kinds)) for _ in range(2 + rng.below(6))]
    more = [replace(fault, seconds=rng.choose((0.02, 0.3, 1.0)), other="") for fault in more]
    house = replace(config.lighthouse, lease=_LONG_LEASE, give_up_after=1.5 * _LONG_LEASE)
    return replace(config, lighthouse=house), (faults if rng.chance(0.5) else []) + more


def _bad_links(rng: Rng, config: WorldConfig, faults: list[Fault], _end: float) -> tuple[WorldConfig, list[Fault]]:
    """Add links between two groups that break for long, or again and again: to the other faults, or instead of them."""
    if config.groups == 1 or not rng.chance(OF_LINKS_SHARE):
        return config, faults
    until = _last(faults)
    return config, ([] if rng.chance(0.3) else faults) + _several(rng, config, "bad_link", 3, until)


def _data(rng: Rng, config: WorldConfig, faults: list[Fault], _end: float) -> tuple[WorldConfig, list[Fault]]:
    """Deal data, with epochs of a few steps."""
    if config.peers or (config.max_redo and not rng.chance(DATA)):
        return config, faults
    policy, slots = rng.choose(tuple(Policy)), 1 + rng.below(8)
    slots = 1 if policy is Policy.SHRINK else slots
    options = DataOptions(policy, slots, 1 + rng.below(3), rng.choose(tuple(Tail)))
    least = options.slots * options.batch if options.tail is Tail.DROP else 1
    config = replace(config, data=options, samples=least + rng.below(rng.choose((20, 100))))
    return replace(config, streams=policy is not Policy.SHRINK and rng.chance(STREAMS)), faults


_ADDED = {
    0x1A7E5: _later, 0x1A7E57: _latest, 0x2E3A1: _newest, 0x4E1D: _memory, 0x57A2D: _take_overs, 0xA9A27: _apart,
    0x5D1E5: _supervisors,
    0xBAD11: _bad_links,
    0xDA7A: _data,
}  # fmt: skip
"""Kinds added after seeds had been written down: each draws from a generator of its own, in this order."""


def _config(rng: Rng) -> WorldConfig:
    lease = rng.choose(_LEASES)
    groups = rng.choose((1, 2, 2, 3, 3, 4, 5))
    least = rng.choose((1, 1, 1, 2)) if groups > 1 else 1
    lighthouse = LighthouseConfig(
        lease=lease,
        lease_margin=1.0,
        give_up_after=1.5 * lease,
        silence=limits(rng.choose((0.6, 1.0, 2.5))),
        join_timeout=rng.choose((0.1, 0.5)),
        min_replicas=rng.choose((1, least)),
        boot_id="host",
        grant_seconds=rng.choose((0.2, 1.0)),
    )
    peers = rng.choose((1, 2)) if rng.chance(0.15) else 0
    vote, runs_on, redo, standby = (rng.chance(p) for p in (0.5, 0.5, 0.5, STANDBY))
    standby = standby and not peers
    ranks = rng.choose((1, 1, 1, 2, 3))
    return WorldConfig(
        commit_vote=vote and not peers,
        runs_on=runs_on,
        standby=standby,
        max_redo=2 if redo and not peers else 0,
        groups=groups,
        ranks=ranks if not peers else 1,  # a simulated client of the peer has one rank
        peers=peers,
        min_replica_size=least,
        max_retries=rng.choose((None, None, 2)),
        async_quorum=not rng.chance(0.3),
        init_sync=not peers and not rng.chance(0.2),
        spares=not peers and rng.chance(0.1),
        retry_quorum=rng.chance(0.7),
        lighthouse=lighthouse,
        one_host=rng.chance(0.5),
        drift=rng.choose((0.0, 0.01)),
        quorum_timeout=max(rng.choose((2.0, 15.0)), 15.0 if standby else 0.0),  # a take-over takes time
        uneven=rng.choose((1.0, 1.5, 5.0)),
        compute=rng.choose(((0.01, 0.03), (0.02, 0.2))),
        latency=rng.choose(((0.0001, 0.001), (0.0001, 0.02))),
        endures=rng.choose((0.0, lease + 1.0)),
    )


def _fault(rng: Rng, config: WorldConfig, at: float, kind: str) -> Fault:
    """Draw one fault of this kind.

    Targets are the initial groups; groups that join later are hit only by faults of links.
    """
    groups, peers = [f"g{i}" for i in range(config.groups)], [f"u{i}" for i in range(config.peers)]
    houses = ["lh", "lh", "lh2"] if config.standby else ["lh"]
    choose, chance, down = rng.choose, rng.chance, (0.02, 0.3, 3.0)
    target, seconds = choose(groups), _duration(rng, config)

    def one_rank() -> str:
        return str(rng.below(config.ranks))

    def part() -> tuple[str, float, str]:
        ends: tuple[str, ...] = choose([(target, "lh"), ("lh", target), (target, choose(groups)), ("s" + target, "lh")])
        if ends[0] == ends[1]:
            ends = (target, "lh")
        if config.standby and chance(0.3):
            ends = tuple("lh2" if end == "lh" else end for end in ends)
        return ends[0], seconds, ends[1]

    def pause() -> tuple[str, float, str]:
        who = choose([*groups, *groups, *houses, *peers])
        how = one_rank() if who in groups and chance(0.3) else ""
        if who in groups and not how and chance(0.4):
            how = choose(("busy", "planned"))
        return who, seconds, how

    def trap() -> tuple[str, float, str]:
        return target, seconds, choose((*POINTS, *VOTE_POINTS, *VOTE_POINTS) if config.commit_vote else POINTS)

    def take_over() -> tuple[str, float, str]:
        ttl = TIMING.failover_ttl
        seconds = choose((0.3, ttl - 0.5, ttl + TIMING.failover_margin + 1.0, 15.0))
        return "", seconds, "group" if chance(0.3) else ""

    shapes: dict[str, Callable[[], tuple[str, float, str]]] = {
        "part": part,
        "part_one_way": part,
        "cut": lambda: (
            target if chance(0.8) else "s" + target,
            choose((0.0, 0.02, 1.0)),
            choose(("client", "server")) + choose(("", "+lose")),
        ),
        "pause": pause,
        "bad_link": lambda: (
            target,
            rng.uniform(2.0, 40.0),
            choose([g for g in groups if g != target]) + choose(("", "", " 1.0", " 4.0")),
        ),
        "hang": lambda: (target, seconds, choose(("", "end", one_rank()))),
        "crash": lambda: (choose([*groups, *peers]), 0.0, ""),
        "crash_all": lambda: ("", choose((0.0, 0.0, 0.1, 1.0)), ""),
        "crash_rank": lambda: (target, 0.0, one_rank()),
        "stall": lambda: (target, 0.2 * config.lighthouse.lease_margin * rng.random(), ""),
        "leave": lambda: (target, choose((0.0, 1.0, 5.0)), ""),
        "join": lambda: ("", 0.0, str(1 + rng.below(3))),
        "lighthouse": lambda: (
            choose(houses) if config.standby else "",
            choose(down),
            "host" if chance(0.3) else "",
        ),
        "lighthouse_and_group": lambda: (target, choose(down), "host" if chance(0.2) else ""),
        "lighthouse_sending": lambda: ("", choose((0.3, 3.0)), ""),
        "deaths_around_restart": lambda: (target, AROUND_RESTART + choose(down), choose(groups)),
        "flapping": lambda: (target, rng.uniform(2.0, 8.0), choose(("0.5", "1.0"))),
        "training_ends": lambda: (
            target,
            choose((0.0, 1.0, 3.0, config.lighthouse.lease + 3.0)),
            f"{choose((1, 5, 20))} {choose((0.0, 0.3, 0.7))}",
        ),
        **dict.fromkeys(OF_A_STANDBY, take_over),
        **{name: trap for name in KINDS if name.startswith("trap_")},
    }
    return Fault(at, kind, *shapes.get(kind, lambda: (target, seconds, ""))())


def _duration(rng: Rng, config: WorldConfig) -> float:
    """Draw a duration in seconds: short, long, or close to some time-out, near which most failures lie."""
    house = config.lighthouse
    silence = (house.silence.alone, house.silence.host, house.silence.busy)
    ends = (*silence, house.lease, house.lease + house.lease_margin, config.keepalive, config.timeout)
    if rng.chance(0.4):
        return min(_LONGEST, rng.choose(ends)) * rng.uniform(0.9, 1.3)
    return rng.uniform(0.05, _LONGEST) if rng.chance(0.4) else rng.uniform(0.01, 0.5)


def run(seed: int, faults: tuple[Fault, ...] | None = None, *, trace: int | None = 400) -> Total:
    """Run the seed's scenario, or other faults on its cluster. Return the figures. Raise `Violation`."""
    return play(seed, faults, trace=trace)[1]


def play(seed: int, faults: tuple[Fault, ...] | None = None, *, trace: int | None = 400) -> tuple[World, Total]:
    """Run as `run` does. Return the world as the run left it, too."""
    config, scheduled = scenario(seed)
    world = World(seed, replace(config, trace=trace))
    return world, finish(world, scheduled if faults is None else faults)


def finish(world: World, faults: tuple[Fault, ...]) -> Total:
    """Let the faults happen, then let the cluster recover and check L1."""
    arm(world, faults)
    world.run_until(max((f.at + f.seconds for f in faults), default=3.0) + 0.01)
    world.calm("the faults are over")
    if world.ending is not None:
        check_end(world)
    else:
        check_liveness(world)
        check_newcomer(world)
        check_newcomer(world, flapping=(0.5, 1.0)[world.seed % 2])
        check_bad_link(world)
        check_away(world)
    checker = world.checker
    return Total(1, world.events, checker.commits, checker.quorums, checker.lineage, world.now, world.counts,
                 Counter([world.config.mode]), checker.figures)  # fmt: skip


def check_liveness(world: World) -> None:
    """Check L1: when faults stop, all live groups share one quorum within `patience`, and steps advance.

    Groups that can only heal across the two libraries, which is refused, are exempt. So is a cluster in which fewer
    groups are left than a quorum or a commit needs.
    """
    calm = Calm(world)
    began = world.now
    together = world.run_while(calm.unsettled, max(0.0, _kept_out(world)) + world.patience)
    # A connect that was under way at the end of the faults may cause an exclusion, after which all begins anew.
    if not together and (left := _kept_out(world) + world.patience) > 0.0:
        together = world.run_while(calm.unsettled, left)
    if not together:
        world.violated("L1", f"{world.now - began:.0f} s after the last fault: {calm.why}")


def _kept_out(world: World) -> float:
    """Return the seconds until the last group that made the others wait again and again is let in (R20).

    Negative if it has been let in, and -inf if none was excluded.
    """
    found = [-inf]
    for house in world.lighthouses:
        if house.machine is not None:
            now = house.clock.read(world.now)
            found += [series.until - now for series in house.machine._waiting._series.values()]
    return max(found)


def check_end(world: World) -> None:
    """Check L1 of a job that ends: when faults stop and evaluations no longer fail, all processes end in time.

    After that no group is to be started again. A group that fails after the training therefore delays the others for a
    bounded time.
    """
    world.ending.fails = 0.0
    limit = world.ending.limit(world)
    if not world.run_while(lambda: bool(still_busy(world)), limit):
        names = ", ".join(f"{s.node!r}" for s in still_busy(world))
        world.violated("L1", f"{limit:.0f} s after the last fault the job has not ended: {names}")


def check_newcomer(world: World, flapping: float = 0.0) -> None:
    """Check L2: without faults a newcomer is in a quorum within a grant, a step, and some time for messages.

    `flapping`: seconds between two breaks of one group's session. The newcomer then also waits once for the steps that
    this group grants itself, and sometimes for a step that it begins without a session (R16).
    """
    config = world.config
    if not config.runs_on or world.checker.newest is None or not _trains(world):
        return
    world.note("--- calm", "a newcomer{}", f", while a session flaps each {flapping} s" if flapping else "")
    wanted = [s.group for s in world.supervisors.values() if s.wants]
    flapper = wanted[world.seed // 2 % len(wanted)]
    newcomer = world.add_group("later" if flapping else "late")
    step = config.compute[1] * config.uneven + 20 * config.latency[1] + config.fetch[1]
    limit = config.startup[1] + 2 * config.lighthouse.grant_seconds + (4 + config.rehearses) * step + 1.0
    limit += 2.0 if config.standby else 0.0  # time to find the lighthouse that serves
    if flapping:
        limit += TIMING.promised + 10 * step + 6 * flapping
        strike(world, Fault(world.now, "flapping", flapper, limit, str(flapping)))
    refused = world.checker.hopeless  # a newcomer is refused if only the peer's clients train, see `check_liveness`
    if not world.run_while(lambda: not _inside(world, newcomer) and newcomer.group not in refused, limit):
        how = f"though only a session flaps, each {flapping} s" if flapping else "without a fault"
        world.violated("L2", f"a newcomer is in no quorum after {limit:.1f} s {how}")


def check_away(world: World) -> None:
    """Check R16: a lighthouse that is away stops no group while leases last, at whatever moment of a step it fails."""
    config = world.config
    step = config.apart + config.compute[1] * config.uneven + 20 * config.latency[1]
    seconds = 1.0 + 6 * step
    if not config.runs_on or config.standby or config.peers or config.lighthouse.lease < 2 * seconds + 2.0:
        return
    check_liveness(world)
    if not _trains(world):
        return
    world.run_for(2.0 + world.rng.uniform(0.0, step))
    world.lighthouse.crash()
    world.run_for(seconds / 2)
    before = world.checker.commits
    world.run_for(seconds / 2)
    if world.checker.commits == before:
        world.violated("R16", f"nobody has committed anything for {seconds / 2:.1f} s while the lighthouse is away")


def check_bad_link(world: World) -> None:
    """Check L3: a broken link between two groups stops the others, and one of the two, for two failed connects at most.

    After that each new attempt stops them for one connect. When the link is mended all come together again (L1). Only
    some runs check this, as it takes more time than the rest of a run, and none in which trainers give up after a few
    failures.
    """
    config, rng = world.config, Rng(world.seed ^ 0xBAD)
    give_up = config.max_retries is not None or not config.retry_quorum
    if not rng.chance(LINK_BREAKS) or give_up or config.peers or config.standby or not _trains(world):
        return
    wanted = [s.group for s in world.supervisors.values() if s.wants]
    if len(wanted) - 1 < max(config.needed, 1):
        return
    a, b = rng.choose([(a, b) for a in wanted for b in wanted if a != b])
    step = config.apart + config.compute[1] * config.uneven + 20 * config.latency[1]
    stands = config.timeout + config.connect_limit + 4 * step + 1.0  # seconds lost by one connect
    link = Fault(world.now, "bad_link", a, 60.0, b)
    strike(world, link)
    world.run_for(2 * stands)
    while world.now < link.at + link.seconds - stands:
        before = world.checker.commits
        if not world.run_while(lambda before=before: world.checker.commits == before, stands):  # type: ignore[misc]
            world.violated(
                "L3", f"nobody has committed anything for {stands:.1f} s while the link of {a} to {b} is broken"
            )
    world.run_until(link.at + link.seconds + 0.01)
    check_liveness(world)


def _trains(world: World) -> bool:
    """Return whether all groups are in one quorum, have a session and stay.

    No partition may be left, and the lighthouse must know the quorum.

    It is ready if it knows the quorum: a lighthouse that lost its host may wait for the lease of a member that has left
    meanwhile (R8).
    """
    if all(house.machine is None or house.machine.current is None for house in world.lighthouses):
        return False
    wanted = [s for s in world.supervisors.values() if s.wants]
    nodes = [s.node for s in wanted if s.node is not None]
    stay = all(n.leaving_at is None and n.uplink.standing for n in nodes)
    return bool(nodes) and stay and not world.network.blocked and all(_inside(world, s) for s in wanted)


def _inside(world: World, supervisor: SupervisorNode) -> bool:
    quorum = world.checker.newest
    return supervisor.node is not None and quorum is not None and quorum.member(supervisor.node.replica_id) is not None


class Calm:
    """Observer that decides whether all live groups have come together and train."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._goal: int | None = None  # step to reach, set when all are together
        self._together: tuple[str, ...] = ()
        self.why = "nothing has happened"

    def unsettled(self) -> bool:
        world = self._world
        wanted = [s for s in world.supervisors.values() if s.wants and s.group not in world.checker.hopeless]
        peers = [p for p in world.peers.values() if not p.hopeless]
        if len(wanted) + len(peers) < world.config.needed or not wanted:
            return False
        names = tuple(sorted([s.node.replica_id for s in wanted if s.node is not None] + [p.who for p in peers]))
        quorum = world.checker.newest
        inside = {m.replica_id for m in quorum.members} if quorum is not None else set()
        missing = [n for n in names if n not in inside]
        if missing:
            self._goal, self.why = None, f"{', '.join(missing)} are not in the newest quorum that counts, {quorum}"
            return True
        steps = [r.step.state.step for s in wanted if s.node is not None for r in s.node.ranks]
        if self._goal is None or names != self._together:
            self._goal, self._together = max(steps) + STEPS_AFTER, names
        self.why = f"all are together, but stand at steps {steps} and not at {self._goal}"
        return min(steps) < self._goal
