"""Decides which members may train together, by what each has declared (`core.fingerprint`), and which are refused.

The declarations of the living members of the present quorum count, the lowest group's first. None of these may have
declared a trait, before the first quorum or when all members of the last one are gone. Then the candidate that has
waited longest counts; of several that asked at the same instant, the lowest group. So a member that comes later never
turns away one that was here first.
"""

from __future__ import annotations

from itertools import combinations
from urllib.parse import urlsplit

from torchft_x.core.fingerprint import DATA, LIBRARY, TORCH, WORLD_SIZE, Difference, Fingerprint, Trait, difference
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.types import group_number, group_of

# Fingerprint of torchft's clients, which can't declare one. torchft's groups and ours differ in how they cut gradients,
# divide them and send state, so a quorum of both never commits.
PEER = Fingerprint((Trait(LIBRARY, "torchft", "none but torchft"),))
_NOTHING = Fingerprint()  # of a member of ours whose ranks declare nothing
_OURS = Trait(LIBRARY, "", "undeclared")

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
    """Finds members that can't train with the others. Keeps what members declare.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, members: MemberTable, quorum_state: QuorumState) -> None:
        self._members = members  # every known member, with its declarations
        self._quorum_state = quorum_state  # the present quorum
        self._kinds: list[Fingerprint] = []  # each distinct declaration once: hundreds of groups declare the same
        self._differ = False  # whether two of these can't train together

    def declare(self, record: MemberRecord, traits: Fingerprint | None) -> str:
        """Store what a member declares; None: as before. Return why to refuse it if it has changed, otherwise ''."""
        if traits is None and record.traits is not None:
            return ""
        traits = _NOTHING if traits is None else traits
        if record.traits is not None and (changed := difference(traits, record.traits)):
            clause = changed.clause("its former one")
            return _sentence(f"{_named(record)} has changed while it runs: {clause}; declare once, before training")
        if traits not in self._kinds:
            self._differ = self._differ or any(_difference(traits, kind) for kind in self._kinds)
            self._kinds.append(traits)
        record.traits = self._kinds[self._kinds.index(traits)]
        return ""

    def misfits(self) -> list[tuple[MemberRecord, str]]:
        """Return the candidates that differ from the members that count, each with a sentence."""
        if not self._differ:
            return []  # the common case, in constant time
        # Forget the declarations that no member holds any more.
        self._kinds = list({id(r.traits): r.traits for r in self._members if r.traits is not None}.values())
        self._differ = any(_difference(a, b) for a, b in combinations(self._kinds, 2))
        present = [r for r in self._members if r.traits is not None and not r.lost]
        present = [r for r in present if r.join is not None or (self._inside(r) and (r.session is not None or r.unary))]
        if self._quorum_state.missing and not any(self._inside(r) for r in present):
            return []  # after a restart of the lighthouse the members that count have yet to declare
        fitting: list[MemberRecord] = []  # the first member that counts of each declaration
        found: list[tuple[MemberRecord, str]] = []
        for record in sorted(present, key=self._precedence):
            differs = next(((o, d) for o in fitting if (d := _difference(record.traits, o.traits))), None)
            if differs is None and not any(o.traits is record.traits for o in fitting):
                fitting.append(record)
            elif differs is not None and record.join is not None:
                found.append((record, _refusal(record, *differs)))
        return found

    def _inside(self, record: MemberRecord) -> bool:
        return record.replica_id in self._quorum_state.inside

    def _precedence(self, record: MemberRecord) -> tuple[bool, float, float, str]:
        inside = self._inside(record)
        number = group_number(record.replica_id)
        since = record.join.since if record.join is not None and not inside else 0.0
        return (not inside, since, float("inf") if number is None else number, record.replica_id)


def _difference(mine: Fingerprint | None, theirs: Fingerprint | None) -> Difference | None:
    """Return the first difference. A client of torchft differs from every member of ours, whatever that declares."""
    assert mine is not None
    assert theirs is not None
    if (mine == PEER) is not (theirs == PEER):
        return Difference(mine.find(LIBRARY, None) or _OURS, theirs.find(LIBRARY, None) or _OURS, None)
    return difference(mine, theirs)


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
    except ValueError:  # a member may report any text as its address
        host = None
    return _called(record) + (f" (host {host})" if host else "")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
