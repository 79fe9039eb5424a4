"""What can be counted in the source of a checkout: files, lines, imports, functions. Nothing of it is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAME = "torchft_x"
# Rules of the launcher's outcome, which the lighthouse carries but which decide nothing about training; where core has
# no packages they are told by name.
_JOB = "core.job"
_VIEW = "core.view"
_JOB_WHEN_FLAT = {"core.assembly", "core.companions", "core.roster", "core.visits"}

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Function:
    module: str
    name: str  # with its classes, e.g. ``Manager.allreduce``
    lines: int


@dataclass(frozen=True)
class Module:
    name: str  # dotted, below the package: ``core.commit.step``
    package: str  # where it lies; "" at the top
    lines: int
    is_face: bool  # an ``__init__``: it may show what lies below it, so its imports don't count
    imports: frozenset[str]  # dotted names, anywhere in its text: ``grpc``, ``torchft_x.core.types.Quorum``
    tree: ast.Module = field(repr=False)


def read(root: Path, below: str = "") -> list[Module]:
    """The modules of the checkout at `root`, all or those of one folder, by name. Not generated ones (``*_pb2.py``).

    Raises ValueError for a relative import.
    """
    top = root / NAME
    modules = []
    for path in sorted((top / below).rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        text = path.read_text(encoding="utf-8")
        package = ".".join(path.parent.relative_to(top).parts)
        face = path.stem == "__init__"
        name = package if face else ".".join(path.relative_to(top).with_suffix("").parts)
        tree = ast.parse(text)
        modules.append(Module(name, package, text.count("\n"), face, frozenset(_imports(tree, name)), tree))
    return sorted(modules, key=lambda m: m.name)


def _imports(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{module}, line {node.lineno}: a relative import hides which package is meant")
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_protocol(module: Module) -> bool:
    """Whether it is one of the rules that decide about training: core without the job's outcome, and what people are shown."""
    if module.name.split(".")[0] != "core":
        return False
    return module.package not in (_JOB, _VIEW) and module.name not in _JOB_WHEN_FLAT


def arrows(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Module -> modules it imports, also in functions and for types only. What lies in none is the package's own face, ""."""
    known = {m.name for m in modules}
    return {m.name: set(_homes(m.imports, known)) - {m.name} for m in modules if not m.is_face}


def _homes(names: Iterable[str], known: set[str]) -> Iterator[str]:
    for name in names:
        first, *parts = name.split(".")
        if first == NAME and parts:
            while parts and ".".join(parts) not in known:  # a name of a module rather than a module
                parts.pop()
            yield ".".join(parts)


def package_arrows(modules: Iterable[Module], between: Graph) -> dict[str, set[str]]:
    """Package -> packages it imports from, given the arrows between modules. What lies at the top (errors, env, ...) is a leaf to all and left out."""
    package = {m.name: m.package for m in modules}
    found: dict[str, set[str]] = {p: set() for p in set(package.values()) - {""}}
    for source, targets in between.items():
        at = package[source]
        if at:
            found[at] |= {package[t] for t in targets} - {at, ""}
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Sets of nodes of which each reaches each (Tarjan's strongly connected components of two or more nodes), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            circle = sorted(stack[at:])
            del stack[at:]
            if len(circle) > 1:
                found.append(circle)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def reduced(graph: Graph) -> dict[str, set[str]]:
    """The least arrows from which the others follow (transitive reduction). Raises ValueError if there is a circle."""
    if circles(graph):
        raise ValueError(f"a graph with circles has no transitive reduction: {circles(graph)}")
    below: dict[str, set[str]] = {}

    def reach(node: str) -> set[str]:
        if node not in below:
            below[node] = set().union(*({t} | reach(t) for t in graph.get(node, ())))
        return below[node]

    return {n: {t for t in targets if not any(t in reach(o) for o in targets)} for n, targets in graph.items()}


def functions(modules: Iterable[Module]) -> list[Function]:
    """All functions and methods, the longest first. Lines count from ``def`` to the end."""
    found: list[Function] = []

    def walk(module: Module, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                end = child.end_lineno or child.lineno
                found.append(Function(module.name, prefix + child.name, end - child.lineno + 1))
                walk(module, child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                walk(module, child, f"{prefix}{child.name}.")
            else:
                walk(module, child, prefix)

    for module in modules:
        walk(module, module.tree, "")
    return sorted(found, key=lambda f: (-f.lines, f.module, f.name))
