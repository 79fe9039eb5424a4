"""Small changes of a module's meaning, one at a time: what a slip of the keyboard would do.

A mutant that no test notices points at a rule that nothing checks. Texts for people (sentences, reprs, docstrings) and
annotations are left alone: they are no rules.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

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
_FOR_PEOPLE = ("Note", "ConfigError", "StepError", "Wait")  # calls whose arguments are mostly sentences
_SKIPPED_FUNCTIONS = ("__repr__", "__str__", "__post_init__", "status", "member_status", "quorum_status")


@dataclass(frozen=True)
class Mutant:
    """One changed module. `what` and `line` name the change for people, and in the list of accepted survivors."""

    module: str
    lineno: int
    line: str
    what: str
    source: str

    @property
    def key(self) -> str:
        """Survives edits elsewhere in the file."""
        return f"{self.module} | {self.line} | {self.what}"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module's source, in the order of its lines."""
    tree = ast.parse(source)
    lines = source.splitlines()
    for index, node in enumerate(_rules(tree)):
        for number, (what, _) in enumerate(_changes(copy.deepcopy(node))):
            changed = copy.deepcopy(tree)
            target = _nth(changed, index)
            _, replacement = list(_changes(target))[number]
            _replace(changed, target, replacement)
            lineno = getattr(node, "lineno", 0)
            text = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(module, lineno, lines[lineno - 1].strip(), what, text)


def _nth(tree: ast.AST, index: int) -> ast.AST:
    return next(node for i, node in enumerate(_rules(tree)) if i == index)


def _rules(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of function bodies that may be changed."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in _SKIPPED_FUNCTIONS:
            for statement in function.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.FunctionDef | ast.Raise):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        if name == "args" and isinstance(node, ast.Call) and _called(node) in _FOR_PEOPLE:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """(description, what to put in the node's place; None: remove it)."""
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
            changed = copy.copy(node)
            changed.test = ast.Constant(value)
            if not (isinstance(node, ast.While) and value):
                yield f"condition -> {value}", changed
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign | ast.Expr) and _has_effect(node)):
        yield "removed", ast.Pass()


def _has_effect(node: ast.Assign | ast.Expr) -> bool:
    """Assignments to attributes and items, and calls for their effect. (A local name that is gone fails anyway.)"""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return any(isinstance(t, ast.Attribute | ast.Subscript | ast.Tuple) for t in node.targets)


def _op(op: ast.AST) -> str:
    return type(op).__name__


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST | None) -> None:
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
