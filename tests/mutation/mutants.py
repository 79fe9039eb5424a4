"""Small changes of a module's meaning, one at a time: what a slip of the keyboard would do.

A mutant that no test notices points at a rule that nothing checks. Texts for people (sentences, reprs, docstrings) and
annotations are left alone: they are no rules.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COMPARE: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
RULE = "rule: "  # what begins so is a part of a rule that is forgotten
_FOR_PEOPLE = ("Note", "ConfigError", "StepError", "Wait")  # calls whose arguments are mostly sentences
_SKIPPED_FUNCTIONS = ("__repr__", "__str__")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `function`, `line` and `what` name it for people; `index` and `number` find it again in the source."""

    module: str
    function: str  # qualified name
    lineno: int
    line: str
    what: str
    nth: int  # of those that would be called the same
    first: int  # lines of the statement it is in, of its head if it is a block: only tests that run these can notice
    last: int
    index: int
    number: int
    digest: str  # of the function's source

    @property
    def key(self) -> str:
        """Survives edits in other functions, and of other lines."""
        return f"{self.module}.{self.function} | {self.line} | {self.what}" + (f" | {self.nth}" if self.nth else "")


def mutants(module: str, source: str, *, rules: bool = False) -> list[Mutant]:
    """All mutants of a module's source, in the order of its lines. `rules`: those that forget a part of a rule instead of
    slipping: a case, a filter, a field that is passed on, a field of a reset.
    """
    lines = source.splitlines()
    named: Counter[str] = Counter()
    found: list[Mutant] = []
    for index, place in enumerate(_places(ast.parse(source))):
        for number, (what, _) in enumerate(_changes(place.node)):
            if what.startswith(RULE) is not rules:
                continue
            lineno = getattr(place.node, "lineno", place.first)
            line = " ".join(lines[lineno - 1].split())
            name = f"{place.function}|{line}|{what}"
            text = "\n".join(lines[place.begins - 1 : place.ends])
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            rest = (lineno, line, what, named[name], place.first, place.last, index, number, digest)
            found.append(Mutant(module, place.function, *rest))
            named[name] += 1
    return sorted(found, key=lambda m: (m.lineno, m.index, m.number))


def skipped(source: str) -> int:
    """How many mutants there would be more if texts for people were rules."""
    every = sum(1 for place in _places(ast.parse(source), texts=True) for _ in _changes(place.node))
    return every - sum(1 for place in _places(ast.parse(source)) for _ in _changes(place.node))


def changed(mutant: Mutant, source: str) -> ast.Module:
    """The module's tree with the change. Line numbers stay."""
    tree = ast.parse(source)
    target = next(place.node for i, place in enumerate(_places(tree)) if i == mutant.index)
    _, replacement = list(_changes(target))[mutant.number]
    _replace(tree, target, ast.copy_location(replacement, target))
    return ast.fix_missing_locations(tree)


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that may be changed, and what it is in."""

    node: ast.AST
    function: str
    first: int
    last: int
    begins: int  # lines of the function
    ends: int


def _places(tree: ast.Module, texts: bool = False) -> Iterator[_Place]:
    """Nodes of function bodies; `texts`: those that only make sentences as well."""
    for function, name in _functions(tree, ""):
        if function.name not in _SKIPPED_FUNCTIONS or texts:
            for statement in function.body:
                for node, first, last in _inside(statement, (0, 0), texts):
                    yield _Place(node, name, first, last, function.lineno, function.end_lineno or 0)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, prefix + child.name
        inner = f"{prefix}{child.name}." if isinstance(child, ast.FunctionDef | ast.ClassDef) else prefix
        yield from _functions(child, inner)


def _inside(node: ast.AST, lines: tuple[int, int], texts: bool) -> Iterator[tuple[ast.AST, int, int]]:
    """(node, first line, last line of its statement)"""
    if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.JoinedStr | ast.Raise) and not texts):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.stmt):
        lines = (node.lineno, _end_of_head(node))
    yield node, *lines
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        if name == "args" and isinstance(node, ast.Call) and _called(node) in _FOR_PEOPLE and not texts:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child, lines, texts)


def _end_of_head(statement: ast.stmt) -> int:
    if isinstance(statement, ast.If | ast.While):
        return statement.test.end_lineno or statement.lineno
    if isinstance(statement, ast.For):
        return statement.iter.end_lineno or statement.lineno
    return statement.end_lineno or statement.lineno


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(description, what to put in the node's place)."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARE.get(type(node.ops[0]), []):
            yield f"{_op(node.ops[0])} -> {_op(other())}", ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ("and -> or" if isinstance(node.op, ast.And) else "or -> and"), ast.BoolOp(other_op, node.values)
        for i in range(len(node.values)):
            rest = [v for j, v in enumerate(node.values) if j != i]
            smaller = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield f"without {ast.unparse(node.values[i])}", smaller
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield f"{_op(node.op)} changed", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES:
        yield f"{node.id} -> {_NAMES[node.id]}", ast.Name(_NAMES[node.id], ast.Load())
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        for value in (True, False):
            decided = copy.copy(node)
            decided.test = ast.copy_location(ast.Constant(value), node.test)
            if not (isinstance(node, ast.While) and value):
                yield f"condition -> {value}", decided
    elif isinstance(node, ast.Match) and len(node.cases) > 1:
        for i, case in enumerate(node.cases):
            yield f"{RULE}without case {ast.unparse(case.pattern)}", ast.Match(node.subject, _without(node.cases, i))
    elif isinstance(node, ast.comprehension):
        for i, clause in enumerate(node.ifs):
            rest = _without(node.ifs, i)
            yield (
                f"{RULE}without if {ast.unparse(clause)}",
                ast.comprehension(node.target, node.iter, rest, node.is_async),
            )
    elif isinstance(node, ast.Call) and len(node.keywords) > 1:
        for i, keyword in enumerate(node.keywords):
            yield f"{RULE}without {keyword.arg}=", ast.Call(node.func, node.args, _without(node.keywords, i))
    elif isinstance(node, ast.Assign) and (pairs := _pairs(node)):
        yield "removed", ast.Pass()
        for i, (target, _) in enumerate(pairs):
            rest = _without(pairs, i)
            targets, values = ast.Tuple([t for t, _ in rest], ast.Store()), ast.Tuple([v for _, v in rest], ast.Load())
            yield f"{RULE}without {ast.unparse(target)} in a reset", ast.Assign([targets], values)
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign | ast.Expr) and _has_effect(node)):
        yield "removed", ast.Pass()


def _without(items: list[Any], i: int) -> list[Any]:
    return [*items[:i], *items[i + 1 :]]


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Of ``a.x, b.y = 1, 2``; empty: it is another assignment. A field that is forgotten in a reset looks like this."""
    target, value = node.targets[-1], node.value
    if len(node.targets) > 1 or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return []
    if not all(isinstance(t, ast.Attribute | ast.Subscript) for t in target.elts):
        return []
    return list(zip(target.elts, value.elts, strict=True)) if len(target.elts) == len(value.elts) else []


def _has_effect(node: ast.Assign | ast.Expr) -> bool:
    """Assignments to attributes and items, and calls for their effect. (A local name that is gone fails anyway.)"""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return any(isinstance(t, ast.Attribute | ast.Subscript | ast.Tuple) for t in node.targets)


def _op(op: ast.AST) -> str:
    return type(op).__name__


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for i, child in enumerate(value):
                    if child is old:
                        value[i] = new
                        return
