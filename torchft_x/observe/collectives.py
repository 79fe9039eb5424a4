"""Comparison of several processes' Flight Recorders (torch's JSON): waiting workers, stragglers, differing collectives.

Pure. For gloo only `retired` shows that a collective has ended (its `state` stays "scheduled"). Collectives carry no
group name if the group was made without `init_process_group`, as ours between the groups are; of those, the newest
process group since the last configure counts. All members of a process group number its collectives alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Who = tuple[str, int]
"""A worker: its group id and its rank in the group."""

BETWEEN = "between the groups"
"""The process group that connects ranks of the same number in all groups."""

_EARLY = 0.1  # seconds by which a collective's time may precede the reported start of its configure
_COMPARED = 50  # number of newest collectives whose arrival times are compared
_LATE = 0.2  # median seconds behind the first worker from which a worker counts as late


@dataclass(frozen=True)
class Op:
    """One collective of one process."""

    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    ended: bool
    t: float  # unix seconds of its issue

    def __str__(self) -> str:
        return f"#{self.number} {self.what}"

    @property
    def what(self) -> str:
        shapes = ", ".join("x".join(map(str, size)) or "scalar" for size in self.sizes[:3])
        more = f" and {len(self.sizes) - 3} more" if len(self.sizes) > 3 else ""
        return f"{self.name} of {shapes or 'nothing'}{more} {'/'.join(sorted(set(self.dtypes))).lower()}".rstrip()


@dataclass(frozen=True)
class Finding:
    """A problem in one process group."""

    sentence: str
    guilty: frozenset[Who]  # workers whose stacks explain the problem


def by_group(recorder: Mapping[str, Any], configured: float) -> dict[str, list[Op]]:
    """Return a process's collectives, in order, by process group: `BETWEEN`, or the name of one inside the group.

    `configured`: unix seconds of the last configure.
    """
    entries = [e for e in recorder.get("entries") or () if isinstance(e, dict) and not e.get("is_p2p")]
    unnamed = [e for e in entries if not any(e.get("process_group") or ())]
    newest = max((int(e.get("pg_id", 0)) for e in unnamed), default=0)
    ours = [e for e in unnamed if int(e.get("pg_id", 0)) == newest]
    found = {}
    if ours and min(_time(e) for e in ours) >= configured - _EARLY:
        found[BETWEEN] = ours
    for e in entries:
        if any(e.get("process_group") or ()):
            found.setdefault(" ".join(filter(None, map(str, e["process_group"]))), []).append(e)
    return {name: sorted(map(_op, list_), key=lambda op: op.number) for name, list_ in found.items()}


def _time(entry: Mapping[str, Any]) -> float:
    return float(entry.get("time_created_ns") or 0) / 1e9


def _op(e: Mapping[str, Any]) -> Op:
    return Op(
        number=int(e.get("collective_seq_id", 0)),
        name=str(e.get("profiling_name", "?")).rpartition(":")[2],
        sizes=tuple(tuple(map(int, size)) for size in e.get("input_sizes") or ()),
        dtypes=tuple(map(str, e.get("input_dtypes") or ())),
        ended=bool(e.get("retired")),
        t=_time(e),
    )


def compare(where: str, logs: Mapping[Who, list[Op]]) -> Finding | None:
    """Return the most telling problem of a process group, or None. `logs`: each member's collectives, [] for none."""
    if len(logs) < 2:
        return None
    return _mismatch(where, logs) or _waiting(where, logs) or _late(where, logs)


def _mismatch(where: str, logs: Mapping[Who, list[Op]]) -> Finding | None:
    at: dict[int, dict[Who, Op]] = {}
    for who, ops in logs.items():
        for op in ops:
            at.setdefault(op.number, {})[who] = op
    for number in sorted(at):
        kinds: dict[str, list[Who]] = {}
        for who, op in at[number].items():
            kinds.setdefault(op.what, []).append(who)
        if len(kinds) > 1:
            told = "; ".join(f"{names(them)} {what}" for what, them in sorted(kinds.items()))
            return Finding(
                f"collective #{number} {where} differs: {told}. All must issue the same ones with the same sizes.",
                frozenset(min(sorted(kinds.items()), key=lambda kind: len(kind[1]))[1]),
            )
    return None


def _waiting(where: str, logs: Mapping[Who, list[Op]]) -> Finding | None:
    waiting = {
        who: next(op for op in ops if not op.ended) for who, ops in logs.items() if any(not o.ended for o in ops)
    }
    if not waiting:
        return None
    number = min(op.number for op in waiting.values())
    first = next(op for op in waiting.values() if op.number == number)
    waits = [who for who, op in waiting.items() if op.number == number]
    absent = [who for who, ops in logs.items() if not ops or ops[-1].number < number]
    wait = "waits" if len(waits) == 1 else "wait"
    sentence = f"{names(waits)} {wait} in {first} {where}"
    if absent:
        come = "has not come to it" if len(absent) == 1 else "have not come to it"
        return Finding(f"{sentence}; {names(absent)} {come}", frozenset(absent))
    if len(waits) == len(logs):
        return Finding(f"all are in {first} {where} and it does not end: look at the network between them", frozenset())
    through = [who for who in logs if who not in waits]
    return Finding(f"{sentence}; {names(through)} {'is' if len(through) == 1 else 'are'} through with it", frozenset())


def _late(where: str, logs: Mapping[Who, list[Op]]) -> Finding | None:
    times = {who: {op.number: op.t for op in ops} for who, ops in logs.items()}
    common = sorted(set.intersection(*(set(t) for t in times.values())))[-_COMPARED:]
    if not common:
        return None
    late = {who: median(t[n] - min(o[n] for o in times.values()) for n in common) for who, t in times.items()}
    worst = max(late, key=lambda who: late[who])
    if late[worst] < _LATE:
        return None
    return Finding(
        f"{names([worst])} is a straggler {where}: it comes {late[worst]:.2f} s after the first (median of "
        f"{len(common)} collectives, by the hosts' clocks)",
        frozenset([worst]),
    )


def names(workers: list[Who]) -> str:
    """Return the workers' names for people, e.g. ``group 0 rank 0 and group 2 rank 0``."""
    words = [f"group {group} rank {rank}" for group, rank in sorted(workers)]
    if len(words) > 4:
        words = [*words[:3], f"{len(words) - 3} others"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
