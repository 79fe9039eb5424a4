"""What members say of themselves, and what of it the others can't all be wrong about. Pure functions.

Ids and steps that no honest program has counted up to are refused as they come in (R1). A state is believed of whoever
brings it while nobody trains: the newest wins. Once a quorum runs, its own members know how far it is (R22):

* Every commit needs the vote of every carrier. So whoever was not in the quorum knows no newer state of this job than
  its members do; and of its carriers none is more than one step ahead of another.
* Who claims more is no source for the others. A member of ours heals like any newcomer; a client of the peer, to which
  that can't be said, is refused. Those that train go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torchft_x.core.in_doubt import settle
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.types import Member, Quorum, State

MOST_STEPS = 1 << 60
"""A step above this is no count of anything. The wire ends at 2**62, which the steps after a claim must not reach."""
_AHEAD = 30 * 365 * 86400.0  # seconds a clock may have been ahead of ours when it made an id (R1)
_BUILT = 1_767_225_600.0  # 2026: no clock that shows an earlier time is right


def impossible(hello: Hello | Member, unix: float) -> str:
    """Why this can't be true, whatever has happened: a sentence; '' if it can. `unix`: seconds, now.

    Ids are milliseconds of some lighthouse's clock times 1024, and each quorum takes one more: nobody forms a thousand
    of them in a millisecond for years. Were a larger one believed, all later ids would have to be above it (R1), until
    the members refuse them.
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
    said = [hello, *members]
    prepared = [m.prepared.quorum for m in members if m.prepared is not None]
    ids = max([x.state.committed_in for x in said] + prepared + [i for q in quorums for i in (q.id, q.config_id)])
    if ids > newest:
        return (
            f"{hello.replica_id} can't join: it names quorum {ids}, an id from a time that no clock shows; restart it."
        )
    granted = [hello.granted_through] if isinstance(hello, Hello) else []
    steps = max([x.state.step for x in said] + granted + [q.granted_through for q in quorums])
    if steps > MOST_STEPS:
        return (
            f"{hello.replica_id} can't join: it names step {steps}, which nobody has reached by counting; restart it."
        )
    return ""


def unfounded(members: Sequence[Member], current: Quorum | None, granted_through: int) -> list[tuple[Member, str]]:
    """R22. Those of these members whose word for their state the others' contradicts, each with a sentence.

    `current`: the quorum that they follow, whose members train; None: nobody does. `granted_through`: in it.
    """
    if current is None or _alike(members):
        return []  # the common case: nobody claims more than anybody else
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
    """Whether all of them stand at the same state. Of numbers, as comparing states takes far longer."""
    first = members[0].state
    step, committed_in = first.step, first.committed_in
    return not [m for m in members if m.state.step != step or m.state.committed_in != committed_in]


def set_aside(members: tuple[Member, ...], doubtful: Collection[str]) -> tuple[Member, ...]:
    """The same with these as members that hold no complete state, so that they heal."""
    return tuple(replace(m, torn=True, prepared=None) if m.replica_id in doubtful else m for m in members)


def _contradicted(
    inside: Sequence[Member], carriers: Collection[str], granted_through: int
) -> list[tuple[Member, str]]:
    """Members of the quorum that claim more than all its other carriers here can have missed. One carrier alone may
    itself be the one that is wrong: then what was granted decides."""
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
