"""A member's standing: its transitions, and who may write to a record."""

from __future__ import annotations

import ast
from dataclasses import fields
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchft_x.core
from tests.unit.core.scene import member
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import LEFT, TRANSITIONS, MemberRecord, Standing
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
    "traits": "admission/compatibility.py",
}
"""The fields of a record that are written outside of `membership`, each by the one part that decides by it."""


def outside() -> list[tuple[str, ast.AST]]:
    paths = [p for package in ("lighthouse", "admission", "restart") for p in sorted((CORE / package).glob("*.py"))]
    nodes = [(p, node) for p in paths for node in ast.walk(ast.parse(p.read_text(encoding="utf-8")))]
    return [(str(p.relative_to(CORE)), node) for p, node in nodes]


def test_what_is_counted_is_written_by_the_table_alone() -> None:
    names = {f.name for f in fields(MemberRecord)}
    attributes = [(path, n) for path, n in outside() if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    stored = [(path, n) for path, n in attributes if not (isinstance(n.value, ast.Name) and n.value.id == "self")]
    assert {(n.attr, path) for path, n in stored if n.attr in names} == set(WRITERS.items())


def test_only_a_suspicion_is_entered_outside_of_the_table() -> None:
    calls = [n for _, n in outside() if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    entered = [ast.unparse(call) for call in calls if call.func.attr == "enter"]  # type: ignore[attr-defined]
    assert entered == ["record.enter(Standing.SUSPECTED)"]


@pytest.mark.parametrize(("before", "after"), [*product(Standing, Standing)])
def test_there_are_no_other_transitions(before: Standing, after: Standing) -> None:
    record = MemberRecord("a", 0.0, standing=before)
    if (before, after) in TRANSITIONS:
        record.enter(after, "why")
        assert (record.standing, record.lost) == (after, "why")
    else:
        with pytest.raises(AssertionError, match=f"no way from {before.value} to {after.value}"):
            record.enter(after)


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
def test_whatever_happens_the_standing_has_its_reason(changes: list[str]) -> None:
    members = MemberTable(0.0)
    record = members.ensure("a", 0.0, unary=False)
    for what in changes:
        before, reason = record.standing, record.lost
        if what in CHANGES:
            CHANGES[what](members, record)
        elif before is Standing.HERE:
            record.enter(Standing.SUSPECTED)
        assert record.standing is before or (before, record.standing) in TRANSITIONS
        assert bool(record.lost) is (record.standing in (Standing.LOST, Standing.LATE))
        assert not reason or record.lost in ("", reason)  # the first reason stays
        assert what != "leave" or record.proof == LEFT  # it is over, whatever its standing was
        assert what != "ask" or (record.proof, record.standing) == ("", before)  # it is found by the lighthouse
