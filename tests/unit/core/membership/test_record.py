"""Who may write to a member's record, and what holds of it whatever happens."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import torchft_x.core
from tests.unit.core.scene import member
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import LEFT, MemberRecord
from torchft_x.core.quorum import Candidate

CORE = Path(torchft_x.core.__file__).parent
WRITERS = {
    "address": "lighthouse/machine.py",
    "lease_sent": "lighthouse/grants.py",
    "notified": "lighthouse/waiting.py",
    "pause_reason": "lighthouse/waiting.py",
    "pause_until": "lighthouse/waiting.py",
    "probed_at": "lighthouse/waiting.py",
    "refused": "lighthouse/waiting.py",
    "suspected": "lighthouse/waiting.py",
    "traits": "admission/compatibility.py",
}
"""The fields of a record that are written outside of `membership`, each by the one part that decides by it."""


def test_what_is_counted_is_written_by_the_table_alone() -> None:
    names = {f.name for f in fields(MemberRecord)}
    paths = [p for package in ("lighthouse", "admission") for p in sorted((CORE / package).glob("*.py"))]
    nodes = [(str(p.relative_to(CORE)), n) for p in paths for n in ast.walk(ast.parse(p.read_text(encoding="utf-8")))]
    attributes = [(path, n) for path, n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    stored = [(path, n) for path, n in attributes if not (isinstance(n.value, ast.Name) and n.value.id == "self")]
    assert {(n.attr, path) for path, n in stored if n.attr in names} == set(WRITERS.items())


CHANGES = {
    "ask": lambda members, record: members.ask(record, Candidate(member("a"), since=0.0)),
    "close": lambda members, record: members.close(record),
    "find": lambda members, record: members.find(record),
    "leave": lambda members, record: members.lose(record, LEFT, proof=LEFT),
    "leave out": lambda members, record: members.lose(record, "late", late=True),
    "lose": lambda members, record: members.lose(record, "silent"),
    "receive": lambda members, record: record.receive(1.0),
}


@given(st.lists(st.sampled_from(sorted([*CHANGES, "suspect"]))))
def test_whatever_happens_the_first_reason_stays(changes: list[str]) -> None:
    members = MemberTable(0.0)
    record = members.ensure("a", 0.0, unary=False)
    for what in changes:
        reason, late = record.lost, record.late
        if what in CHANGES:
            CHANGES[what](members, record)
        elif not reason:
            record.suspected = True
        assert not (record.lost and record.suspected)
        assert record.lost or not record.late
        assert not reason or (record.lost, record.late) in (("", False), (reason, late))
        assert what != "leave" or record.proof == LEFT  # it is over, whether it was lost before or not
        assert what != "ask" or (record.proof, record.lost) == ("", reason)  # it is found by the lighthouse
