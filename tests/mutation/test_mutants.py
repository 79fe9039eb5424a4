"""The mutator, and that the tests of core still notice what it does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import RULE, changed, mutants, skipped
from tests.mutation.run import ROOT, accepted, modules, source_of
from tests.util import scaled

SOURCE = '''\
class Gate:
    """Opens."""

    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return "open" if self.count > 1 else "shut"

    def push(self, weight: int, why: str = "no reason") -> list[str]:
        """Push it."""
        if weight < 3 and why:
            self.count += 1
            say(f"pushed {weight - 1} times")
        if not why:
            raise ValueError("why" if weight == 2 else "else")
        return [Note("pushed", "hard" if weight > 9 else "softly")]
'''


def say(text: str) -> None:
    pass


def test_each_rule_is_changed_in_every_way_and_texts_are_left_alone() -> None:
    assert [(m.function, m.lineno, m.what) for m in mutants("gate", SOURCE)] == [
        ("Gate.__init__", 5, "removed"),
        ("Gate.__init__", 5, "0 -> 1"),
        ("Gate.push", 12, "condition -> True"),
        ("Gate.push", 12, "condition -> False"),
        ("Gate.push", 12, "and -> or"),
        ("Gate.push", 12, "without weight < 3"),
        ("Gate.push", 12, "without why"),
        ("Gate.push", 12, "Lt -> LtE"),
        ("Gate.push", 12, "Lt -> GtE"),
        ("Gate.push", 12, "3 -> 4"),
        ("Gate.push", 13, "removed"),
        ("Gate.push", 13, "1 -> 2"),
        ("Gate.push", 14, "removed"),
        ("Gate.push", 15, "condition -> True"),
        ("Gate.push", 15, "condition -> False"),
        ("Gate.push", 15, "without not"),
    ]
    assert skipped(SOURCE) > 5


RULES = """\
class Gate:
    def on(self, event: object, members: list[Member]) -> object:
        match event:
            case Push():
                self.count, self.open, self.why = 0, True, ""
            case Pull():
                return [m for m in members if m.here and m.able if m.asks]
        return Member(state=1, torn=False)
"""


def test_a_part_of_a_rule_may_be_forgotten() -> None:
    found = mutants("gate", RULES, rules=True)
    assert [(m.lineno, m.what.removeprefix(RULE)) for m in found] == [
        (3, "without case Push()"),
        (3, "without case Pull()"),
        (5, "without self.count in a reset"),
        (5, "without self.open in a reset"),
        (5, "without self.why in a reset"),
        (7, "without if m.here and m.able"),
        (7, "without if m.asks"),
        (8, "without state="),
        (8, "without torn="),
    ]
    assert {m.what for m in mutants("gate", RULES)}.isdisjoint(m.what for m in found)
    forgetful = changed(next(m for m in found if "open" in m.what), RULES)
    assert "self.count, self.why = (0, '')" in ast.unparse(forgetful)


def test_a_mutant_is_the_module_with_that_change_on_the_same_line() -> None:
    (mutant,) = [m for m in mutants("gate", SOURCE) if m.what == "Lt -> LtE"]
    names: dict[str, object] = {"say": say, "Note": lambda *texts: texts[0]}
    exec(compile(changed(mutant, SOURCE), "gate.py", "exec"), names)
    gate = names["Gate"]()  # type: ignore[operator]
    assert gate.push(3) == ["pushed"]
    assert gate.count == 1
    assert gate.push.__func__.__code__.co_firstlineno == 10


def test_a_key_outlives_an_edit_of_another_function() -> None:
    other = SOURCE.replace("self.count = 0", "self.count = 0\n        self.weight = 0")
    before, after = (
        {(m.key, m.digest) for m in mutants("gate", s) if m.function == "Gate.push"} for s in (SOURCE, other)
    )
    assert before == after


@pytest.mark.parametrize("module", modules())
def test_every_mutant_has_a_name_of_its_own(module: str) -> None:
    found = mutants(module, source_of(module))
    assert len({m.key for m in found}) == len(found)


def test_every_survivor_that_is_accepted_has_a_reason() -> None:
    known = accepted()
    assert known
    assert [key for key, reason in known.items() if key.count(" | ") < 2 or len(reason) < 10] == []


def test_sampled_mutants_of_pure_modules_are_noticed(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    chosen = [
        "in_doubt",
        "cross_group_vote",
        "--tests",
        "tests/core/test_in_doubt.py",
        "tests/core/test_cross_group_vote.py",
    ]
    command = [sys.executable, "-m", "tests.mutation.run", *chosen, "--stage", "core", "--results", str(results)]
    for sample, total in (("8", 8), ("16", 16)):  # the second time with what the first has found
        done = subprocess.run(
            [*command, "--sample", sample], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60), check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"| all | {total} |" in done.stdout
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    assert sum(line["end"] == "killed" for line in lines) > len(lines) // 2
