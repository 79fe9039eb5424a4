"""A second implementation of the formation rules, written for reading and not for speed: no reasons, one rule a line.

`test_formation` compares it with `torchft_x.core.quorum.form` on thousands of situations.
"""

from __future__ import annotations

from torchft_x.core.quorum import Candidate, QuorumInputs
from torchft_x.core.types import JoinReason, State
from torchft_x.timing import TIMING


def simple_form(s: QuorumInputs) -> tuple[list[str], bool, bool] | None:
    """Return (members, rebuild, new lineage), or None for "not yet"."""
    old = [] if s.cur is None else [m.replica_id for m in s.cur.members]
    asked = {c.member.replica_id: c for c in s.candidates}
    if old:
        asked = {r: c for r, c in asked.items() if r in old or not c.member.shrink_only}
    if [r for r, c in asked.items() if r in old and c.member.shrink_only]:
        asked = {r: c for r, c in asked.items() if r in old}
    names = sorted(asked)
    if not names or len(names) < s.min_replicas:
        return None

    if s.cur is None:
        alive = len(names) + len(s.silent_healthy)
        if 2 * len(names) <= alive:
            return None
        everybody = not s.silent_healthy and not s.absent_groups
        first = min([s.asked_since] + [asked[r].since for r in names])
        if not everybody and s.now < first + s.join_timeout:
            return None
        if holds_newer(s, asked) and s.now < first + s.longest_wait:
            return None
        return names, True, False

    for r in old:
        if r not in names and r not in s.lost:
            return None
    new_lineage = False
    for q in [s.cur, *s.open]:
        complete = [m.state for m in q.members if not m.torn]
        top = max(complete) if complete else None
        heir = all(r in names and not asked[r].member.torn for r in [m.replica_id for m in q.members])
        for r in names:
            before = q.member(r)
            now = asked[r].member
            if before is None or now.torn:
                continue
            was_carrier = not before.torn and before.state == top and now.state >= top
            has_committed = now.state > (top or State())
            heir = heir or was_carrier or has_committed
        all_over = all(m.replica_id in names or m.replica_id in s.over for m in q.members)
        if not heir and not all_over:
            return None
        new_lineage = new_lineage or not heir
    everybody = not s.silent_healthy and not s.absent_groups
    first = min([s.asked_since] + [asked[r].since for r in names])
    if new_lineage and not everybody and s.now < first + min(s.join_timeout, TIMING.new_lineage):
        return None
    if new_lineage and holds_newer(s, asked) and s.now < first + s.longest_wait:
        return None
    failed = any(
        c.member.commit_failures or c.reason in (JoinReason.FAILED, JoinReason.REJOINED)
        for r, c in asked.items()
        if r in names
    )
    return names, s.broken or failed or names != old, new_lineage


def holds_newer(s: QuorumInputs, asked: dict[str, Candidate]) -> bool:
    """Return whether a supervisor holds a newer state than all members that ask."""
    whole = [c.member.state for c in asked.values() if not c.member.torn]
    return any(state > max(whole, default=State()) for state in s.held.values())
