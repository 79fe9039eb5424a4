"""Build one object with all that a lighthouse knows of its job, for `/status.json`, the page and `torchft_x status`.

Its fields are in docs/operate.md. Readers must ignore unknown fields; `SCHEMA` grows when a field changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchft_x.core.lighthouse.status import MemberView, View
from torchft_x.core.types import by_number, group_number, group_of, readable
from torchft_x.observe.view.activity import GroupFacts, activity
from torchft_x.observe.view.attempts import AttemptTable, GroupAttempts
from torchft_x.observe.view.facts import Copy, Tally
from torchft_x.observe.view.history import History

SCHEMA = 1

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A lighthouse's knowledge of the job as a whole."""

    outcome: Mapping[str, Mapping[str, Any]] | None  # `JobOutcome.status`; None: the lighthouse knows no job
    verdict: tuple[int, str] | None  # exit code and sentence, once the job is over
    sidecars: Mapping[str, Mapping[str, Any]]
    drained: frozenset[str]  # groups that were asked to leave


def overview(
    view: View,
    history: History,
    attempts: AttemptTable,
    job: Job,
    tally: Tally,
    copies: Mapping[str, Copy],
    slow: Mapping[str, float],
    *,
    rate: float | None,
    unix: float,
    story: list[str],
) -> Json:
    """Return the JSON-able overview. Times are unix seconds, ages seconds.

    By replica id: present `copies`, and by which part `slow` members are slower than the others.
    """
    groups = _groups(view, history, attempts, job, copies, slow)
    step = view.reached if view.quorum is not None else max((g["step"] or 0 for g in groups), default=0)
    return {
        "schema": SCHEMA,
        "time": unix,
        "state": _state(view, job, groups),
        "step": step,
        "step_rate": rate,
        "waiting": _waiting(view),
        "quorum": _quorum(view),
        "min_replicas": view.min_replicas,
        "groups": groups,
        "wanted": None if job.outcome is None else list(job.outcome),
        "sidecars": [{"sidecar": name, **values} for name, values in job.sidecars.items()],
        "verdict": None if job.verdict is None else {"code": job.verdict[0], "sentence": job.verdict[1]},
        "quorums": [asdict(q) | {"reason": readable(q.reason)} for q in history.quorums],
        "losses": [asdict(loss) | {"reason": readable(loss.reason)} for loss in history.losses],
        "refusals": [asdict(r) | {"sentence": readable(r.sentence)} for r in history.refusals],
        "counts": {
            "quorums": history.count["quorums"],
            "regroupings": history.count["regroupings"],
            "joins": history.count["joins"],
            "losses": dict(history.causes),
            "refusals": history.count["refusals"],
            "new_lineages": history.count["lineages"],
            "undone_steps": history.count["undone"],
            "restarts": attempts.restarts,
            "commits": tally.commits,
            "dropped_steps": tally.drops,
        },
        "durations": {
            name: {"number": durations.number, "mean": durations.mean}
            for name, durations in (("step", tally.steps), ("reduction", tally.reductions), ("heal", tally.heals))
        },
        "story": [readable(line) for line in story],
    }


def _quorum(view: View) -> Json | None:
    q = view.quorum
    if q is None:
        return None
    return {
        "id": q.id,
        "number": q.number,
        "age": view.age,
        "members": len(q.members),
        "healing": len(q.members) - len(q.carriers),
        "broken": readable(view.broken),
    }


def _waiting(view: View) -> Json | None:
    """Return how many members wait for the next quorum, how long, and why; None: no member waits."""
    asked = [m.asked for m in view.members if m.asked is not None]
    return {"members": len(asked), "since": max(asked), "reason": readable(view.undecided)} if asked else None


def _state(view: View, job: Job, groups: list[Json]) -> str:
    if job.verdict is not None:
        return "finished" if job.verdict[0] == 0 else "failed"
    if view.quorum is None:
        return "starting"
    if any(g["does"] in ("trains", "heals") for g in groups):
        return "training"
    return "finished" if groups and all(g["does"] in ("finished", "left") for g in groups) else "waiting"


def _groups(
    view: View,
    history: History,
    attempts: AttemptTable,
    job: Job,
    copies: Mapping[str, Copy],
    slow: Mapping[str, float],
) -> list[Json]:
    outcome = job.outcome or {}
    named = {*outcome, *(x.group for x in attempts if x.here or (job.outcome is None and x.finished is not None))}
    newest: dict[str, MemberView] = {}
    for member in view.members:
        name = _name(member.replica_id, named)
        if job.outcome is not None and name not in named and member.lost:
            continue  # the group was removed from the job
        if name not in newest or newest[name].index < member.index:
            newest[name] = member
    out = {_name(loss.replica_id, named): loss for loss in history.out.values()}
    gone = () if job.outcome is not None else out
    rows = []
    for group in by_number({*named, *newest, *gone}):
        trouble = str(outcome[group]["trouble"]) if group in outcome else ""
        who = newest[group].replica_id if group in newest else ""
        seen = GroupFacts(
            group, newest.get(group), attempts.get(group), out.get(group), trouble, group in job.drained, copies.get(who),
            slow.get(who, 0.0),
        )  # fmt: skip
        rows.append(_row(seen, view))
    return rows


def _row(seen: GroupFacts, view: View) -> Json:
    does, more = activity(seen, broken=view.broken, undecided=view.undecided)
    member, attempts = seen.member, seen.attempts
    return {
        "group": seen.group,
        "does": does,
        "more": more,
        "step": None if member is None else member.step,
        "replica_id": "" if member is None else member.replica_id,
        "waits": None if member is None else member.asked,
        "host": "" if attempts is None else attempts.host,
        "attempt": _attempt(member, attempts),
        "restarts": 0 if attempts is None else attempts.restarts,
        "last_exit": "" if attempts is None else attempts.reason,
        "supervised": attempts is not None and attempts.here,
        "torchft": member is not None and member.unary,
        "slower": seen.slower if does == "trains" and seen.slower else None,
        "copy": _copy(seen.copy) if does == "heals" and seen.copy is not None else None,
    }


def _copy(copy: Copy) -> Json:
    return {"source": copy.source, "bytes": copy.done, "total": copy.total, "seconds": copy.took, "rate": copy.rate}


def _attempt(member: MemberView | None, attempts: GroupAttempts | None) -> int:
    return max(member.attempt if member is not None else 0, attempts.attempt if attempts is not None else 0)


def _name(replica_id: str, named: set[str]) -> str:
    """Return the group's name among those of supervisors and the job, else its group id."""
    group, number = group_of(replica_id), str(group_number(replica_id))
    return number if group not in named and number in named else group
