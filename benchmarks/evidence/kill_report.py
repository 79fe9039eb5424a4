"""Report of kill_test.py about a run: the cost of each fault, and the lost batches with their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.evidence import check_params
from tests.events import commits
from torchft_x.observe.console import groups

Event = dict[str, Any]

KILL, HANG, LIGHTHOUSE = "kill -9", "SIGSTOP", "kill -9 of the lighthouse"


@dataclass(frozen=True)
class Fault:
    """A fault that was done."""

    kind: str
    group: str  # group of the victim; empty: the lighthouse
    t: float  # unix seconds
    over: float  # unix seconds until which the victim could not come back


@dataclass(frozen=True, kw_only=True)
class Death:
    """One kill and its cost. Times are seconds since the kill; None: it never happened."""

    group: str
    t: float  # unix seconds of the kill
    detected: float | None  # until the first survivor knew of it
    # Until the first commit of any survivor without it (a step that was all but done is none).
    next_commit: float | None
    rejoined: float | None  # until the first commit of the group's next attempt
    dropped: int  # steps the survivors dropped before that next commit; the same step counts once


def figures(values: list[float | None]) -> dict[str, float | None]:
    """Return median and worst of the known values, and the number of missing ones (None)."""
    known = [v for v in values if v is not None]
    missing = len(values) - len(known)
    if not known:
        return {"median": None, "worst": None, "missing": missing}
    return {"median": round(median(known), 4), "worst": round(max(known), 4), "missing": missing}


def longest_gap(events: list[dict[str, Any]], begin: float, end: float) -> float:
    """Return the longest time in seconds in which no group committed."""
    times = [begin, *(float(e["t"]) for e in commits(events) if begin < float(e["t"]) < end)]
    return max((b - a for a, b in pairwise(times)), default=end - begin)


def report(
    events: list[Event], dumps: list[check_params.Dump], faults: list[Fault], *, reference: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the results of a run as JSON holds them. `reference` is the result of hsdp_reference.py."""
    ends = [f.t for f in faults[1:]] + [float("inf")] * bool(faults)
    deaths: dict[str, list[Death]] = {KILL: [], HANG: []}
    gaps: list[float | None] = []
    bystanders = 0  # trainers that ended because the lighthouse did
    for fault, end in zip(faults, ends, strict=True):
        if fault.kind == LIGHTHOUSE:
            gaps.append(longest_gap(events, fault.t, min(end, fault.t + 5.0)))
            bystanders += sum(
                e.get("event") == "restart" and e.get("role") == "supervisor" and fault.t < float(e["t"]) < end
                for e in events
            )
        else:
            deaths[fault.kind].append(death(events, fault.group, fault.t, until=end))
    begun = check_params.lineages(events)
    findings = check_params.check(dumps, begun) if dumps else ["no dumps were written"]
    if bystanders:
        findings.append(f"{bystanders} trainers were started again after the lighthouse was killed")
    if reference is not None and "error" in reference:
        findings.append(f"the reference: {reference['error']}")
    kills, hangs = deaths[KILL], deaths[HANG]
    return {
        "kills": len(kills),
        "hangs": len(hangs),
        "lighthouse_kills": len(gaps),
        "dumps": len(dumps),
        "shared_steps": check_params.shared_steps(dumps, begun),
        "findings": findings,
        "detected": figures([d.detected for d in kills]),
        "next_commit": figures([d.next_commit for d in kills]),
        "rejoined": figures([d.rejoined for d in kills]),
        "hang_next_commit": figures([d.next_commit for d in hangs]),
        "lighthouse_gap": figures(gaps),
        "dropped_steps": sum(d.dropped for d in (*kills, *hangs)),
        "lost_batches": [lost_batch(one, faults, events) for one in check_params.lost(dumps)],
        "reference": reference,
        "deaths": [asdict(d) for d in kills],
        "stops": [asdict(d) for d in hangs],
    }


def lost_batch(lost: check_params.Lost, faults: Sequence[Fault], events: Sequence[Event]) -> dict[str, Any]:
    """Return the owner of a lost batch, and the reason why it was dropped.

    `stopped` tells the two kinds apart. If the batch's own group was stopped, the others went on without it, and its
    gradient belongs to a step that is over. Any other batch should not have been lost.
    """
    stopped = any(f.kind == HANG and f.group == lost.group and f.t < lost.end and f.over > lost.begin for f in faults)
    of_this_attempt = {"group": lost.group, "rank": lost.rank, "attempt": lost.attempt}
    reasons = [
        str(e.get("reason"))
        for e in events
        if e.get("event") == "drop"
        and lost.begin < float(e["t"]) <= lost.end
        and {"group": str(e.get("group")), "rank": e.get("rank", 0), "attempt": e.get("attempt", 0)} == of_this_attempt
    ]
    reason = reasons[0] if reasons else "no event of this attempt says why"
    return {**of_this_attempt, "step": lost.step, "number": lost.number, "stopped": stopped, "reason": reason}


def show(result: dict[str, Any]) -> None:
    more = "".join(
        f", {result[key]} {what}"
        for key, what in (("hangs", "SIGSTOP"), ("lighthouse_kills", LIGHTHOUSE))
        if result[key]
    )
    print(f"\n{result['groups']} groups, {result['kills']} kills -9{more}, exit code {result['exit_code']}")
    for key, what in (
        ("detected", "kill -> a survivor knows"),
        ("next_commit", "kill -> survivors' next commit"),
        ("rejoined", "kill -> first commit of the restarted group"),
        ("hang_next_commit", "stopped -> survivors' next commit"),
        ("lighthouse_gap", "lighthouse killed: longest time without a commit"),
    ):
        f = result[key]
        if f["median"] is not None:
            print(f"  {what:<50} median {f['median']:.3f} s, worst {f['worst']:.3f} s, missing {f['missing']}")
    print(f"  {'steps dropped':<50} {result['dropped_steps']}")
    ours = [b for b in result["lost_batches"] if not b["stopped"]]
    theirs = [b for b in result["lost_batches"] if b["stopped"]]
    print(f"  {'batches drawn by survivors, not committed':<50} {sum(b['number'] for b in ours)}")
    if theirs:
        print(f"  {'... by those that were stopped':<50} {sum(b['number'] for b in theirs)}")
    for b in (*ours, *theirs):
        whose = f"{'stopped ' if b['stopped'] else ''}group {b['group']} rank {b['rank']} attempt {b['attempt']}"
        print(f"    {b['number']} of {whose}, after step {b['step']}: {b['reason']}")
    for finding in result["findings"]:
        print(f"  FAILED: {finding}")
    if result["reference"] is not None and "error" not in result["reference"]:
        r = result["reference"]
        print(
            f"  one process that computes all batches: {r['losses']} losses differ by at most {r['loss_error']:.1e}, "
            f"{r['wholes']} whole models by {r['value_error']:.1e}"
        )
    if not result["findings"]:
        print(f"  parameters bit-equal at all {result['shared_steps']} shared steps ({result['dumps']} dumps), no gap")


def death(events: Sequence[Event], group: str, t: float, *, until: float = float("inf")) -> Death:
    """Return the cost of killing a process of `group` at unix time `t`. Events from `until` on are of later kills."""
    later = [e for e in events if t < float(e["t"]) < until]
    ours = [e for e in commits(events, group=group) if float(e["t"]) <= t]
    last_attempt = int(ours[-1].get("attempt", 0)) if ours else 0
    survivors = [e for e in later if e.get("role") == "trainer" and str(e.get("group")) != group]
    heard = [e for e in survivors if _tells_of(e, group)]
    together = max((int(e.get("participants", 0)) for e in ours[-1:]), default=0)
    without = [e for e in commits(survivors) if int(e.get("participants", 0)) < together]
    return Death(
        group=group,
        t=t,
        detected=_since(t, heard),
        next_commit=_since(t, without),
        rejoined=_since(t, [e for e in commits(later, group=group) if int(e.get("attempt", 0)) > last_attempt]),
        dropped=len({e.get("step") for e in survivors if e.get("event") == "drop"}),
    )


def _tells_of(e: Event, group: str) -> bool:
    """Return whether a survivor's event shows its knowledge of the group's loss (at a boundary, a quorum does)."""
    if e.get("event") == "quorum":
        return group not in groups(e.get("members"))
    return e.get("event") == "abort" or group in groups(e.get("lost"))


def _since(t: float, events: Sequence[Event]) -> float | None:
    return float(events[0]["t"]) - t if events else None
