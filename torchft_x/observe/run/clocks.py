"""One time for all processes of a run. The wall clocks of several hosts are not trusted.

Within a host the monotonic clock counts, because a wall clock may be set while the job runs. Processes with the same
difference between their two clocks (the host's boot time by its own clock) share a host. The offset between two hosts
is estimated from events that both have seen: all groups make a commit at nearly the same time, and a quorum is received
right after it was issued. A host that shares no event with the others keeps its wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from torchft_x.observe.run.reading import Log, Note, RunFiles

_SAME_HOST = 0.25  # seconds; processes that are interrupted between reading both clocks differ by less
_ENOUGH = 512  # number of common commits that are compared


@dataclass(eq=False)
class Host:
    """A host: the processes that share a clock."""

    boot: float  # boot time in unix seconds, by its own wall clock
    logs: list[Log] = field(default_factory=list)
    offset: float = 0.0  # seconds by which its wall clock is ahead of the reference's
    estimated: bool = False  # False: it is the reference, or its offset is unknown


def align(heard: RunFiles) -> list[Host]:
    """Give each log its `shift`, and put the notes in the order of that time. The first host is the reference."""
    hosts = _hosts(heard.logs)
    if len(hosts) > 1:
        _estimate(hosts, heard.notes)
    for host in hosts:
        for log in host.logs:
            log.shift = host.boot - host.offset
    heard.notes = sorted((note._replace(t=note.t + note.log.shift) for note in heard.notes), key=lambda n: n.t)
    return hosts


def _hosts(logs: Sequence[Log]) -> list[Host]:
    hosts: list[Host] = []
    for log in sorted(logs, key=lambda log: log.boot):
        if hosts and log.boot - hosts[-1].logs[-1].boot < _SAME_HOST:
            hosts[-1].logs.append(log)
        else:
            hosts.append(Host(log.boot, [log]))
    for host in hosts:
        host.boot = median(log.boot for log in host.logs)
    return sorted(hosts, key=lambda host: -sum(len(log.commits) for log in host.logs))


def _estimate(hosts: list[Host], notes: Sequence[Note]) -> None:
    # (step, quorum) -> when: by the reference's clock, and by each other host's own
    known, left, before = _commits(hosts[0]), [(host, _commits(host)) for host in hosts[1:]], 0
    while len(left) != before:  # a host may share commits only with one that is placed after it
        left, before, waiting = [], len(left), left
        for host, steps in waiting:  # those with most commits come first
            both = sorted(known.keys() & steps.keys())
            if both:
                host.offset = median(steps[key] - known[key] for key in both[:: max(1, len(both) // _ENOUGH)])
                host.estimated = True
                known = {key: t - host.offset for key, t in steps.items()} | known
            else:
                left.append((host, steps))
    _by_quorums(hosts, [host for host, _ in left], notes)


def _commits(host: Host) -> dict[tuple[int, int], float]:
    """Return when, by its wall clock, a host first committed each (step, quorum); in a long run every nth step only."""
    total = sum(len(log.commits) for log in host.logs if log.rank == 0)
    every = max(1, total // (200 * _ENOUGH))  # a power of two, so that hosts choose common steps
    every = 1 << (every - 1).bit_length()
    seen: dict[tuple[int, int], float] = {}
    for log in host.logs:
        if log.rank:
            continue
        for t, step, quorum in zip(log.commits.t, log.commits.step, log.commits.quorum, strict=True):
            if step % every == 0:
                seen[step, quorum] = min(t + host.boot, seen.get((step, quorum), float("inf")))
    return seen


def _by_quorums(hosts: list[Host], left: list[Host], notes: Sequence[Note]) -> None:
    """Estimate the offset of a host without steps (the lighthouse's), as no quorum is received before it is issued."""
    at = {id(log): host for host in hosts for log in host.logs}
    issued: dict[int, tuple[Host, float]] = {}
    received: dict[int, float] = {}  # by the reference's clock
    for note in notes:
        quorum = note.of.get("quorum")
        if note.name != "quorum" or quorum is None:
            continue
        host = at[id(note.log)]
        t = note.t + host.boot
        if note.log.role == "lighthouse" and host in left:
            issued.setdefault(quorum, (host, t))
        elif note.log.role == "trainer" and host not in left:
            received[quorum] = min(t - host.offset, received.get(quorum, float("inf")))
    for host in left:
        gaps = sorted(t - received[q] for q, (who, t) in issued.items() if who is host and q in received)
        if gaps:
            host.offset, host.estimated = gaps[-1], True  # the fastest delivery of a quorum is taken as 0 seconds
