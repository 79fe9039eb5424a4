"""Groups and their attempts, the quorums, and the activities of each group over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from torchft_x.core.types import by_number
from torchft_x.observe.run.reading import Log, Note
from torchft_x.observe.run.values import AttemptSummary, Group, Quorum, Span


def attempts(logs: Sequence[Log], notes: Sequence[Note]) -> list[AttemptSummary]:
    """Return the attempts of all groups, in the order of their beginning."""
    found: dict[tuple[str, int, str], AttemptSummary] = {}
    by_attempt: dict[tuple[str, int], AttemptSummary] = {}
    for log in logs:
        if log.role != "trainer":
            continue
        attempt = found.setdefault(
            (log.group, log.attempt, log.replica_id if log.rank == 0 else ""),
            AttemptSummary(group=log.group, number=log.attempt, replica_id=log.replica_id),
        )
        if log.rank == 0 and log.commits:
            first, last = (log.commits.t[k] + log.boot for k in (0, -1))
            attempt.first_commit = _least(first, attempt.first_commit)
            attempt.last_commit = max(last, attempt.last_commit or last)
            attempt.commits += len(log.commits)
    whole = {key[:2] for key in found if key[2]}
    for key in [
        key for key in found if not key[2] and key[:2] in whole
    ]:  # entries of ranks above 0, whose attempt is known from rank 0
        del found[key]
    for (group, number, _), attempt in found.items():
        by_attempt[group, number] = attempt
    for note in notes:
        _take(note, found, by_attempt)
    made = {id(attempt): attempt for attempt in (*found.values(), *by_attempt.values())}
    return sorted(made.values(), key=_begin)


def _take(
    note: Note, found: dict[tuple[str, int, str], AttemptSummary], by_attempt: dict[tuple[str, int], AttemptSummary]
) -> None:
    log = note.log
    if log.role == "supervisor" and note.name in ("start", "exit") and log.group:
        number = note.of.get("attempt", 0)
        attempt = by_attempt.setdefault((log.group, number), AttemptSummary(group=log.group, number=number))
        if note.name == "start":
            attempt.started = note.t if attempt.started is None else attempt.started
        elif attempt.ended is None:
            attempt.ended, attempt.code, attempt.reason = note.t, note.of.get("code"), note.of.get("reason", "")
    elif log.role == "trainer":
        attempt = found.get((log.group, log.attempt, log.replica_id)) or by_attempt[log.group, log.attempt]
        if note.name == "joined":
            attempt.joined = note.t if attempt.joined is None else attempt.joined
        elif note.name in ("heal_end", "restored") and log.rank == 0:
            attempt.healed = note.t if attempt.healed is None else attempt.healed


def _begin(attempt: AttemptSummary) -> float:
    known = (attempt.started, attempt.joined, attempt.first_commit, attempt.ended)
    return min((t for t in known if t is not None), default=0.0)


def quorums(notes: Iterable[Note]) -> list[Quorum]:
    """Return the quorums in the order of their ids, which is the order of time."""
    issued: dict[int, Note] = {}
    received: dict[int, Note] = {}
    healing: dict[int, tuple[str, ...]] = {}
    for note in notes:  # in order of time
        if note.name == "quorum" and note.of.get("quorum") and note.of.get("members"):
            known = issued if note.log.role == "lighthouse" else received
            known.setdefault(note.of["quorum"], note)
            healing.setdefault(note.of["quorum"], note.of.get("healing", ()))
            if note.of.get("healing"):
                healing[note.of["quorum"]] = note.of["healing"]
    made: list[Quorum] = []
    ids = sorted(issued.keys() | received.keys())
    for k, number in enumerate(ids):
        note = issued.get(number) or received[number]
        after = (issued.get(ids[k + 1]) or received[ids[k + 1]]) if k + 1 < len(ids) else None
        made.append(
            Quorum(
                id=number,
                number=note.of.get("number", 0),
                step=note.of.get("step", 0),
                t=note.t,
                received=received[number].t if number in received else None,
                until=max(note.t, after.t) if after is not None else None,
                members=note.of["members"],
                healing=healing[number],
            )
        )
    return made


def groups(logs: Sequence[Log], every: Sequence[AttemptSummary], made: Sequence[Quorum], ended: float) -> list[Group]:
    """Return the groups in the order of their numbers. `ended`: time of the run's newest event."""
    of: dict[str, list[AttemptSummary]] = defaultdict(list)
    for attempt in every:
        of[attempt.group].append(attempt)
    out = _absences(made, ended)
    sent: dict[str, float] = defaultdict(float)
    ranks: dict[str, set[int]] = defaultdict(set)
    for log in logs:
        if log.role == "trainer":
            sent[log.group] += log.commits.bytes
            ranks[log.group].add(log.rank)
    return [
        Group(
            name=name,
            workers=len(ranks[name]),
            attempts=tuple(of[name]),
            spans=tuple(s for attempt in of[name] for s in _spans(attempt, out.get(attempt.replica_id, []), ended)),
            commits=sum(attempt.commits for attempt in of[name]),
            bytes=sent[name],
        )
        for name in by_number(set(of))
    ]


def _absences(made: Sequence[Quorum], ended: float) -> dict[str, list[tuple[float, float]]]:
    """Return the times in which an attempt was in no quorum after it had been in one, by replica id."""
    gone: dict[str, float] = {}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    before: set[str] = set()
    for quorum in made:
        members = set(quorum.members)
        for r in before - members:
            gone[r] = quorum.t
        for r in members & gone.keys():
            found[r].append((gone.pop(r), quorum.t))
        before = members
    for r, t in gone.items():
        found[r].append((t, ended))
    return found


def _spans(attempt: AttemptSummary, out: Sequence[tuple[float, float]], ended: float) -> list[Span]:
    end = next((t for t in (attempt.ended, attempt.last_commit) if t is not None), ended)
    spans = []
    if attempt.started is not None:
        joined = _least(attempt.joined, attempt.first_commit, end)
        spans.append(Span(begin=attempt.started, end=joined, what="starting"))
    if attempt.joined is not None:
        spans.append(Span(begin=attempt.joined, end=_least(attempt.first_commit, end), what="joining"))
    if attempt.first_commit is None or attempt.last_commit is None:
        return [s for s in spans if s.end > s.begin]
    at = attempt.first_commit
    for begin, until in out:
        if begin < attempt.last_commit and until > attempt.first_commit:
            spans += [Span(begin=at, end=begin, what="training"), Span(begin=begin, end=until, what="out")]
            at = until
    spans.append(Span(begin=at, end=attempt.last_commit, what="training"))
    return [s for s in spans if s.end > s.begin]


def _least(*times: float | None) -> float:
    return min(t for t in times if t is not None)
