"""Checks what members say of themselves against what the others can't all be wrong about. Pure functions.

Ids and steps that no honest program has counted up to are refused as they come in (R1). While nobody trains, every
member's state is believed, and the newest wins. Once a quorum runs, its own members know how far it is (R22):

* Every commit needs the vote of every carrier. So a member that was not in the quorum knows no newer state of this job
  than the quorum's members do, and none of the carriers is more than one step ahead of another.
* A member that claims more is no source for the others. If it runs our library it heals like any newcomer. A client of
  torchft can't be told to heal, and is refused. The members that train go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torchft_x.core.in_doubt import settle
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.types import Member, Quorum, State

MOST_STEPS = 1 << 60
"""Highest step that a member may claim. The wire ends at 2**62, which the steps after a claim must not reach."""
_AHEAD = 30 * 365 * 86400.0  # seconds by which a clock may have been ahead of ours when it made an id (R1)
_BUILT = 1_767_225_600.0  # unix seconds, 2026: a clock that shows an earlier time is wrong


def impossible(hello: Hello | Member, unix: float) -> str:
    """Return why this can't be true under any circumstances, as a sentence; '' if it can. `unix`: now, in seconds.

    An id is a lighthouse's clock in milliseconds times 1024, and each quorum adds one: no lighthouse forms a thousand
    quorums in a millisecond for years. If a larger id were believed, all later ids would have to be above it (R1),
    until the members refuse them.
    """
    newest = int((max(unix, _BUILT) + _AHEAD) * 1000) << 10
    plain = isinstance(hello, Member) and hello.prepared is None
    if plain and hello.state.committed_in <= newest and hello.state.step <= MOST_STEPS:
        return ""  # the common case
    held = hello.quorum if isinstance(hello, Hello) else None
    if held is not None and held.member(hello.replica_id) is None:
        return f"{hello.replica_id} can't join: it says that it holds quorum {held.id}, of which it is no member; restart it."
    quorums = [held] if held is not None else []
    members = [m for q in quorums for m in q.members]
    if isinstance(hello, Member):
        members.append(hello)
    reports = [hello, *members]
    prepared = [m.prepared.quorum for m in members if m.prepared is not None]
    ids = max([x.state.committed_in for x in reports] + prepared + [i for q in quorums for i in (q.id, q.config_id)])
    if ids > newest:
        return (
            f"{hello.replica_id} can't join: it names quorum {ids}, an id from a time that no clock shows; restart it."
        )
    granted = [hello.granted_through] if isinstance(hello, Hello) else []
    steps = max([x.state.step for x in reports] + granted + [q.granted_through for q in quorums])
    if steps > MOST_STEPS:
        return (
            f"{hello.replica_id} can't join: it names step {steps}, which nobody has reached by counting; restart it."
        )
    return ""


def unfounded(members: Sequence[Member], current: Quorum | None, granted_through: int) -> list[tuple[Member, str]]:
    """Return the members whose claimed state the others contradict (R22), each with a sentence.

    `current`: the quorum that they follow, whose members train; None: nobody trains. `granted_through`: the highest
    step granted in that quorum.
    """
    if current is None or _alike(members):
        return []  # the common case: all claim the same state
    names = {m.replica_id for m in current.members}
    carriers = {m.replica_id for m in current.carriers}
    inside = [m for m in members if m.replica_id in names and not m.torn]
    found = _contradicted(inside, carriers, granted_through)
    wrong = {m.replica_id for m, _ in found}
    honest = [m for m in inside if m.replica_id not in wrong]
    if not any(m.replica_id in carriers for m in honest):
        return found
    known = settle(honest, State()).top
    outside = (m for m in members if m.replica_id not in names and not m.torn)
    return found + [(m, _unknown(m, known)) for m in outside if m.state > known]


def _alike(members: Sequence[Member]) -> bool:
    """Return whether all members stand at one state. Compare numbers, because comparing states takes far longer."""
    first = members[0].state
    step, committed_in = first.step, first.committed_in
    return not [m for m in members if m.state.step != step or m.state.committed_in != committed_in]


def set_aside(members: tuple[Member, ...], doubtful: Collection[str]) -> tuple[Member, ...]:
    """Return the members, the doubtful ones (replica ids) marked as without a complete state, so that they heal."""
    return tuple(replace(m, torn=True, prepared=None) if m.replica_id in doubtful else m for m in members)


def _contradicted(
    inside: Sequence[Member], carriers: Collection[str], granted_through: int
) -> list[tuple[Member, str]]:
    """Return the members of the quorum that claim to be further than its other carriers here can have missed.

    A single other carrier may itself be wrong. Then a claim is contradicted only above `granted_through`.
    """
    newest = sorted((m for m in inside if m.replica_id in carriers), key=lambda m: m.state, reverse=True)[:2]
    if not newest:
        return []
    several = sum(m.replica_id in carriers for m in inside)
    found = []
    for m in inside:
        other = next((x for x in newest if x is not m), None)
        if other is None or m.state.step <= other.state.step + 1:
            continue
        others = several - (m.replica_id in carriers)
        if others > 1 or m.state.step > granted_through:
            found.append((m, _ahead(m, other)))
    return found


def _ahead(member: Member, other: Member) -> str:
    return (
        f"{member.replica_id} says that it stands at {member.state}, but {other.replica_id}, whose vote every step "
        f"needed, stands at {other.state}."
    )


def _unknown(member: Member, known: State) -> str:
    return (
        f"{member.replica_id} says that it stands at {member.state}, which nobody knows of those that train, who stand at "
        f"{known}. If that state is the one to go on from, stop all groups and start them again from it."
    )
