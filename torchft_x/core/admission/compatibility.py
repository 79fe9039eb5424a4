"""Who may train together: what each member has declared (`core.fingerprint`), and who is turned away for it.

What counts is what the living members of the present quorum have declared, the lowest group first. Where none of them
has declared a trait (before the first quorum, or when all who were in the last are gone) it is the candidate that has
waited longest, at the same instant the lowest group: who was there first is not turned away by who comes later.
"""

from __future__ import annotations

from itertools import combinations
from urllib.parse import urlsplit

from torchft_x.core.fingerprint import DATA, LIBRARY, TORCH, WORLD_SIZE, Difference, Fingerprint, Trait, difference
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord, MemberTable
from torchft_x.core.types import group_number, group_of

# What a peer's client is, which can't say so itself. Its groups and ours cut gradients, divide and send state in other ways;
# a quorum of both never commits.
PEER = Fingerprint((Trait(LIBRARY, "torchft", "none but torchft"),))

_SAME_SCRIPT = "start every group with the same script and settings"
_ADVICE = {
    LIBRARY: "install the same torchft_x for every group",
    TORCH: "install the same PyTorch for every group",
    WORLD_SIZE: "give every group the same number of workers",
    DATA: "give every group the same data",
}
_COMPILE_ALIKE = (
    "compile in every group or in none, or by model.compile(), which, unlike torch.compile(model), renames nothing"
)


class CompatibilityCheck:
    """Part of the lighthouse; shares its roll and tenure."""

    def __init__(self, roll: MemberTable, tenure: QuorumState) -> None:
        self._roll = roll  # every member heard of, with what it declared
        self._tenure = tenure  # the present quorum
        self._kinds: dict[int, Fingerprint] = {}  # what members declare, each kind once, by its id
        self._differ = False  # whether two of them can't train together

    def declare(self, record: MemberRecord, traits: Fingerprint) -> str:
        """Remember what a member declares. Returns why it must be refused, if it has changed its mind; else ''."""
        if record.traits is not None and (changed := difference(traits, record.traits)):
            clause = changed.clause("its former one")
            return _sentence(f"{_named(record)} has changed within one life: {clause}; declare once, before training")
        record.traits = next((kind for kind in self._kinds.values() if kind == traits), traits)
        if id(record.traits) not in self._kinds:  # hundreds of groups say the same: it is kept once
            self._differ = self._differ or any(difference(traits, kind) for kind in self._kinds.values())
            self._kinds[id(traits)] = traits
        return ""

    def misfits(self) -> list[tuple[MemberRecord, str]]:
        """Candidates that differ from those that count, each with a sentence."""
        if not self._differ:
            return []  # the common case, in constant time
        self._recount()
        present = [r for r in self._roll if r.traits is not None and not r.lost]
        present = [r for r in present if r.join is not None or (self._inside(r) and (r.session is not None or r.unary))]
        if self._tenure.missing and not any(self._inside(r) for r in present):
            return []  # after a restart of the lighthouse: those that count have yet to say what they are
        fitting: dict[int, MemberRecord] = {}  # what counts: the first to declare each of these, by the Traits' id
        found: list[tuple[MemberRecord, str]] = []
        for record in sorted(present, key=self._precedence):
            differs = next(((o, d) for o in fitting.values() if (d := _difference(record, o))), None)
            if differs is None:
                fitting.setdefault(id(record.traits), record)
            elif record.join is not None:
                found.append((record, _refusal(record, *differs)))
        return found

    def _recount(self) -> None:
        """Forget the kinds that nobody declares any more."""
        self._kinds = {id(r.traits): r.traits for r in self._roll if r.traits is not None}
        kinds = list(self._kinds.values())
        self._differ = any(difference(a, b) for a, b in combinations(kinds, 2))

    def _inside(self, record: MemberRecord) -> bool:
        return record.replica_id in self._tenure.inside

    def _precedence(self, record: MemberRecord) -> tuple[bool, float, float, str]:
        inside = self._inside(record)
        number = group_number(record.replica_id)
        since = record.join.since if record.join is not None and not inside else 0.0
        return (not inside, since, float("inf") if number is None else number, record.replica_id)


def _difference(record: MemberRecord, other: MemberRecord) -> Difference | None:
    assert record.traits is not None
    assert other.traits is not None
    return difference(record.traits, other.traits)


def _refusal(record: MemberRecord, other: MemberRecord, found: Difference) -> str:
    if PEER.items[0] in (found.mine, found.theirs):
        mine, theirs = ("torchft", "torchft_x") if found.mine is PEER.items[0] else ("torchft_x", "torchft")
        return _sentence(
            f"{_named(record)} runs {mine} and can't train with {_named(other)}, which runs {theirs}; run "
            "all groups on one library"
        )
    advice = _COMPILE_ALIKE if found.is_compiling() else _ADVICE.get(found.mine.name, _SAME_SCRIPT)
    clause = found.clause(f"{_called(other)}'s")
    return _sentence(f"{_named(record)} can't train with {_named(other)}: {clause}; {advice}")


def _called(record: MemberRecord) -> str:
    group = group_of(record.replica_id)
    return group if group.startswith("group") else f"group {group}" if group else record.replica_id


def _named(record: MemberRecord) -> str:
    try:
        host = urlsplit(record.address).hostname
    except ValueError:  # what a member calls its address may be anything
        host = None
    return _called(record) + (f" (host {host})" if host else "")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
