"""Name a group's present activity, for the page, `torchft_x status`, and the gauges by activity."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.lighthouse.status import MemberView
from torchft_x.core.types import readable
from torchft_x.observe.view.attempts import GroupAttempts
from torchft_x.observe.view.facts import Copy, copying
from torchft_x.observe.view.history import LossEntry
from torchft_x.observe.view.speed import slower

DOES = (
    "trains",  # is in the quorum, and up to date
    "heals",  # is in the quorum, and copies the state of another group
    "waits",  # has asked for the next quorum
    "regroups",  # was told that the quorum is over, and has not asked yet
    "pauses",  # has announced that it may be silent: an evaluation, a checkpoint
    "rehearses",  # is a newcomer that makes its first step by itself while others train
    "starts",  # has processes that run and have not asked yet
    "restarts",  # has lost its newest attempt, and its supervisor starts the next one
    "drains",  # was asked to leave at its next boundary
    "drained",  # has left, and is not started until somebody asks for it
    "stopped",  # has a process that is stopped (SIGSTOP, a debugger)
    "silent",  # sends nothing, though it should run
    "late",  # lives and does not ask: the others go on without it
    "lost",  # is lost, so no member waits for it
    "left",  # has left in good order
    "finished",  # has ended well: its supervisor is done
    "failed",  # has ended badly: its supervisor is done
    "awaited",  # belongs to the job, and its supervisor has not come
)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """All known facts about one group, from which its activity follows."""

    group: str
    member: MemberView | None  # newest member of the group; None: none is known
    attempts: GroupAttempts | None  # None: no supervisor has reported on the group
    loss: LossEntry | None  # newest loss, while the group is not back
    trouble: str  # why the group counts as lost in the job's outcome; '': it does not
    drains: bool  # whether the group was asked to leave
    copy: Copy | None = None  # copy of a state, as the group reports it
    slower: float = 0.0  # by which part it is slower than the others; 0: it is not slow


def activity(facts: GroupFacts, *, broken: str, undecided: str) -> tuple[str, str]:
    """Return one of `DOES` and a clause with details; '' if there are none."""
    does, more = _by_supervisor(facts) or _by_member(facts, broken, undecided)
    return does, readable(more.rstrip("."))


def _by_supervisor(facts: GroupFacts) -> tuple[str, str] | None:
    attempts = facts.attempts
    if attempts is not None and attempts.finished is not None:
        code, sentence = attempts.finished
        return ("failed", sentence or f"code {code}") if code else ("finished", sentence)
    if facts.trouble:
        return "lost", facts.trouble
    if attempts is None:
        return None
    if attempts.rests and not attempts.alive:
        return "drained", "until it is resumed"
    if facts.drains and attempts.alive:
        return "drains", "leaves at its next step boundary"
    if attempts.here and attempts.starts and not attempts.alive:
        return "restarts", attempts.reason
    return None


def _by_member(facts: GroupFacts, broken: str, undecided: str) -> tuple[str, str]:
    member = facts.member
    if member is None or (member.lost and facts.attempts is not None and facts.attempts.attempt > member.attempt):
        return _without_member(facts)
    if member.left:
        return "left", ""
    if member.stopped:
        return "stopped", f"{member.stopped} is stopped (SIGSTOP or a debugger)"
    if member.lost:
        return ("late" if member.late else "lost"), member.lost
    if member.asked is not None:
        return "waits", undecided or "for the next quorum"
    if member.pause > 0:
        return "pauses", f"{member.pause_reason}: for up to {member.pause:.0f} s"
    if member.suspected:
        return "silent", f"not heard for {member.heard:.1f} s"
    if member.inside and broken:
        return "regroups", broken
    if member.inside:
        if member.carrier:
            return "trains", slower(facts.slower) if facts.slower else ""
        return "heals", _heals(member.source, facts.copy)
    if not member.connected:
        return "silent", f"its connection broke {member.heard:.1f} s ago"
    return ("rehearses", "makes its first step before it joins") if member.rehearses else ("starts", "")


def _without_member(facts: GroupFacts) -> tuple[str, str]:
    if facts.attempts is not None and facts.attempts.alive:
        return "starts", ""
    if facts.loss is not None:
        left = facts.loss.cause == "left"
        return ("left" if left else "lost"), "" if left else facts.loss.exit or facts.loss.reason
    return ("awaited", "") if facts.attempts is None else ("starts", "")


def _heals(source: str, copy: Copy | None) -> str:
    if copy is None:
        return f"copies from {source}" if source else ""
    return copying(copy)
