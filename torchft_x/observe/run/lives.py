"""Groups and their lives, the quorums, and the activities of each group over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchft_x.observe.console import by_number
from torchft_x.observe.run.reading import Log, Note
from torchft_x.observe.run.values import Group, Life, Quorum, Span


@dataclass(eq=False)
class _Life:
    """A `Life` under construction. Times are seconds of the run's common clock."""

    group: str
    attempt: int
    replica_id: str = ""
    started: float | None = None
    joined: float | None = None
    healed: float | None = None
    logs: list[Log] = field(default_factory=list)  # logs of rank 0
    ended: float | None = None
    code: int | None = None
    reason: str = ""

    def done(self) -> Life:
        first = [log.commits.t[0] + log.shift for log in self.logs if log.commits]
        last = [log.commits.t[-1] + log.shift for log in self.logs if log.commits]
        return Life(
            group=self.group,
            attempt=self.attempt,
            replica_id=self.replica_id,
            started=self.started,
            joined=self.joined,
            healed=self.healed,
            first_commit=min(first, default=None),
            last_commit=max(last, default=None),
            commits=sum(len(log.commits) for log in self.logs),
            ended=self.ended,
            code=self.code,
            reason=self.reason,
        )


def lives(logs: Sequence[Log], notes: Sequence[Note]) -> list[Life]:
    """Return the lives of all groups, in the order of their beginning."""
    found: dict[tuple[str, int, str], _Life] = {}
    by_attempt: dict[tuple[str, int], _Life] = {}
    for log in logs:
        if log.role != "trainer":
            continue
        life = found.setdefault(
            (log.group, log.attempt, log.replica_id if log.rank == 0 else ""),
            _Life(log.group, log.attempt, log.replica_id),
        )
        if log.rank == 0:
            life.logs.append(log)
    whole = {key[:2] for key in found if key[2]}
    for key in [
        key for key in found if not key[2] and key[:2] in whole
    ]:  # entries of ranks above 0, whose life is known from rank 0
        del found[key]
    for (group, attempt, _), life in found.items():
        by_attempt[group, attempt] = life
    for note in notes:
        _take(note, found, by_attempt)
    made = {id(life): life for life in (*found.values(), *by_attempt.values())}
    return sorted((life.done() for life in made.values()), key=_begin)


def _take(note: Note, found: dict[tuple[str, int, str], _Life], by_attempt: dict[tuple[str, int], _Life]) -> None:
    log = note.log
    if log.role == "supervisor" and note.name in ("start", "exit") and log.group:
        attempt = note.of.get("attempt", 0)
        life = by_attempt.setdefault((log.group, attempt), _Life(log.group, attempt))
        if note.name == "start":
            life.started = note.t if life.started is None else life.started
        elif life.ended is None:
            life.ended, life.code, life.reason = note.t, note.of.get("code"), note.of.get("reason", "")
    elif log.role == "trainer":
        life = found.get((log.group, log.attempt, log.replica_id)) or by_attempt[log.group, log.attempt]
        if note.name == "joined":
            life.joined = note.t if life.joined is None else life.joined
        elif note.name in ("heal_end", "restored") and log.rank == 0:
            life.healed = note.t if life.healed is None else life.healed


def _begin(life: Life) -> float:
    known = (life.started, life.joined, life.first_commit, life.ended)
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
                until=after.t if after is not None else None,
                members=note.of["members"],
                healing=healing[number],
            )
        )
    return made


def groups(logs: Sequence[Log], every: Sequence[Life], made: Sequence[Quorum], ended: float) -> list[Group]:
    """Return the groups in the order of their numbers. `ended`: time of the run's newest event."""
    of: dict[str, list[Life]] = defaultdict(list)
    for life in every:
        of[life.group].append(life)
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
            lives=tuple(of[name]),
            spans=tuple(s for life in of[name] for s in _spans(life, out.get(life.replica_id, []), ended)),
            commits=sum(life.commits for life in of[name]),
            bytes=sent[name],
        )
        for name in by_number(set(of))
    ]


def _absences(made: Sequence[Quorum], ended: float) -> dict[str, list[tuple[float, float]]]:
    """Return the times in which a life was in no quorum after it had been in one, by replica id."""
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


def _spans(life: Life, out: Sequence[tuple[float, float]], ended: float) -> list[Span]:
    end = next((t for t in (life.ended, life.last_commit) if t is not None), ended)
    spans = []
    if life.started is not None:
        spans.append(Span(begin=life.started, end=_least(life.joined, life.first_commit, end), what="starting"))
    if life.joined is not None:
        spans.append(Span(begin=life.joined, end=_least(life.first_commit, end), what="joining"))
    if life.first_commit is None or life.last_commit is None:
        return [s for s in spans if s.end > s.begin]
    at = life.first_commit
    for begin, until in out:
        if begin < life.last_commit and until > life.first_commit:
            spans += [Span(begin=at, end=begin, what="training"), Span(begin=begin, end=until, what="out")]
            at = until
    spans.append(Span(begin=at, end=life.last_commit, what="training"))
    return [s for s in spans if s.end > s.begin]


def _least(*times: float | None) -> float:
    return min(t for t in times if t is not None)
