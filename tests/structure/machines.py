"""The central machines of core, read from their text: phases and the verbs between them, events and what they lead to.

Nothing is imported. A machine's events and effects are the types in ``handle(self, event: EVENTS, now) -> list[EFFECTS]``,
both of them unions. Which effects an event leads to is what its ``case`` can reach through calls of methods and
functions of core: more than any single run shows, never less, as long as objects keep their declared types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.structure.source import NAME, Module


@dataclass(frozen=True)
class Verb:
    """A method of a machine with phases."""

    name: str
    before: tuple[str, ...]  # phases in which it may be called, in the order of the enum
    after: str  # phase that it leads to; "": it stays


@dataclass(frozen=True)
class Phases:
    names: tuple[str, ...]
    verbs: tuple[Verb, ...]  # public ones that need or change the phase, or may be called in any


@dataclass(frozen=True)
class Machine:
    """A machine with ``handle``."""

    name: str
    effects: tuple[str, ...]  # in the order of the union
    leads_to: Mapping[str, frozenset[str]]  # event -> effects; in the order of the union
    always: frozenset[str]  # what may follow any event: reached by `handle` outside of its cases
    not_taken: frozenset[str]  # events of the union without a case


# --- phases -----------------------------------------------------------------------------------------------------------


def phases(module: Module, machine: str, enum: str) -> Phases:
    """Of a class whose verbs begin with ``self._need(Enum.X)``, ``if self.phase is not Enum.X: raise`` or
    ``if self.phase in (Enum.X, ...): raise``, and which sets ``self.phase``."""
    classes = {n.name: n for n in module.tree.body if isinstance(n, ast.ClassDef)}
    names = tuple(
        t.id for n in classes[enum].body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    )
    verbs = []
    for node in classes[machine].body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_property(node):
            before = _before(node, enum, names)
            after = [phase for target, phase in _set(node, enum) if target == "phase"]
            verbs.append(Verb(node.name, before, after[-1] if after else ""))
    return Phases(names, tuple(verbs))


def transitions(module: Module, enum: str, table: str) -> Phases:
    """Of a module with ``TABLE = {(Enum.X, Enum.Y): "what leads from the one to the other", ...}``."""
    (cls,) = (n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name == enum)
    names = tuple(t.id for n in cls.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name))
    (written,) = (
        n.value
        for n in module.tree.body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id == table
    )
    assert isinstance(written, ast.Dict)
    verbs = []
    for pair, words in zip(written.keys, written.values, strict=True):
        assert isinstance(pair, ast.Tuple)
        assert isinstance(words, ast.Constant)
        before, after = (end.attr for end in pair.elts if isinstance(end, ast.Attribute))
        verbs.append(Verb(str(words.value), (before,), after))
    return Phases(names, tuple(verbs))


def _is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def _members(node: ast.AST, enum: str) -> list[str]:
    """``Enum.X`` anywhere below."""
    found = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    return [n.attr for n in found if isinstance(n.value, ast.Name) and n.value.id == enum]


def _before(node: ast.FunctionDef, enum: str, names: tuple[str, ...]) -> tuple[str, ...]:
    allowed = set(names)
    for part in node.body:
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and _is_self(part.value.func, "_need"):
            allowed &= set(_members(part.value, enum))
        elif isinstance(part, ast.If) and isinstance(part.test, ast.Compare) and isinstance(part.body[0], ast.Raise):
            named = set(_members(part.test, enum))
            if named and isinstance(part.test.ops[0], ast.IsNot):
                allowed &= named
            elif named:
                allowed -= named
    return tuple(name for name in names if name in allowed)


def _set(node: ast.FunctionDef, enum: str) -> Iterable[tuple[str, str]]:
    """(attribute, phase) of each ``self.attribute = Enum.X``, also among several assigned at once."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign):
            continue
        target, value = part.targets[0], part.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for to, what in pairs:
            if isinstance(to, ast.Attribute) and isinstance(what, ast.Attribute) and _members(what, enum):
                yield to.attr, what.attr


def _is_self(node: ast.AST, attr: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attr
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


# --- events and effects -----------------------------------------------------------------------------------------------


def machine(modules: Iterable[Module], module: str) -> Machine:
    """The class with ``handle`` in this module, e.g. ``core.group.machine``."""
    code = Code(modules)
    cls = next(c for at, c in code.classes.items() if at[0] == module and "handle" in c.methods)
    handle = cls.methods["handle"]
    assert handle.args.args[1].annotation is not None
    assert handle.returns is not None
    events = code.union(cls.module, _names(handle.args.args[1].annotation)[-1])
    effects = code.union(cls.module, _names(handle.returns)[-1])
    reach = _Reach(code, frozenset(effects))
    match, around = _find_match(cls)
    cases: dict[str, set[str]] = {}
    for case in match.cases:
        found = reach.of(cls, around, case.body)
        for event in _classes(case.pattern):
            cases.setdefault(event, set()).update(found)
    always = reach.of(cls, handle, handle.body, without=around.name if around is not handle else "", skip=match)
    return Machine(
        name=cls.name,
        effects=tuple(effects),
        leads_to={event: frozenset(cases.get(event, ())) for event in events},
        always=frozenset(always),
        not_taken=frozenset(set(events) - set(cases)),
    )


def _find_match(cls: Class) -> tuple[ast.Match, ast.FunctionDef]:
    """The ``match`` over the event, in ``handle`` or in the method that it leaves that to."""
    for method in sorted(cls.methods.values(), key=lambda m: m.name != "handle"):
        for node in ast.walk(method):
            if isinstance(node, ast.Match) and isinstance(node.subject, ast.Name) and node.subject.id == "event":
                return node, method
    raise ValueError(f"{cls.name} has no `match event`.")


def _classes(pattern: ast.pattern) -> list[str]:
    found = (n.cls for n in ast.walk(pattern) if isinstance(n, ast.MatchClass))
    return [n.attr if isinstance(n, ast.Attribute) else n.id for n in found if isinstance(n, (ast.Attribute, ast.Name))]


def _names(node: ast.AST) -> list[str]:
    """Names of types in an annotation, in their order; of ``m.Hello`` the last part."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _names(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return [name for child in ast.iter_child_nodes(node) for name in _names(child)]


@dataclass(frozen=True)
class Class:
    name: str
    module: str
    methods: Mapping[str, ast.FunctionDef]


class Code:
    """The classes, functions and unions of core, each by the module where it is written and its name."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.classes: dict[tuple[str, str], Class] = {}
        self.functions: dict[tuple[str, str], ast.FunctionDef] = {}
        self._unions: dict[tuple[str, str], ast.expr] = {}
        self._imports: dict[tuple[str, str], tuple[str, str]] = {}  # (module, name) -> where it is from
        for module in modules:
            if module.name.split(".")[0] == "core":
                for node in module.tree.body:
                    self._take(module.name, node)

    def _take(self, module: str, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef):
            methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
            self.classes[module, node.name] = Class(node.name, module, methods)
        elif isinstance(node, ast.FunctionDef):
            self.functions[module, node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._unions[module, node.targets[0].id] = node.value
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{NAME}."):
            for alias in node.names:
                origin = (node.module.removeprefix(f"{NAME}."), alias.name)
                self._imports[module, alias.asname or alias.name] = origin

    def _origin(self, module: str, name: str) -> tuple[str, str]:
        return self._imports.get((module, name), (module, name))

    def union(self, module: str, name: str) -> list[str]:
        return _names(self._unions[self._origin(module, name)])

    def function(self, module: str, name: str) -> tuple[str, ast.FunctionDef] | None:
        """A function by the name it has in a module, and the module where it is written."""
        at = self._origin(module, name)
        return (at[0], self.functions[at]) if at in self.functions else None

    def known(self, module: str, annotation: ast.AST | None) -> Class | None:
        """The class that an annotation in a module names, alone or ``| None``."""
        origins = [self._origin(module, n) for n in _names(annotation)] if annotation is not None else []
        found = [self.classes[at] for at in origins if at in self.classes]
        return found[0] if len(found) == 1 else None

    def attribute(self, cls: Class, name: str) -> Class | None:
        """The class of ``self.name``: what is assigned or annotated somewhere in the class, or a property's."""
        if name in cls.methods and _is_property(cls.methods[name]):
            return self.known(cls.module, cls.methods[name].returns)
        for method in cls.methods.values():
            arguments = {a.arg: a.annotation for a in [*method.args.args, *method.args.kwonlyargs]}
            for node in ast.walk(method):
                if isinstance(node, ast.AnnAssign) and _is_self(node.target, name):
                    return self.known(cls.module, node.annotation)
                if isinstance(node, ast.Assign) and any(_is_self(t, name) for t in node.targets):
                    value = node.value.func if isinstance(node.value, ast.Call) else node.value
                    annotation = arguments.get(value.id, value) if isinstance(value, ast.Name) else value
                    if (kind := self.known(cls.module, annotation)) is not None:
                        return kind
        return None


class _Reach:
    """Effects that a piece of code may make."""

    def __init__(self, code: Code, effects: frozenset[str]) -> None:
        self._code = code
        self._effects = effects

    def of(
        self,
        cls: Class,
        function: ast.FunctionDef,
        body: list[ast.stmt],
        *,
        without: str = "",
        skip: ast.AST | None = None,
    ) -> set[str]:
        """`body` lies in `function` of `cls`. `without`: a method that isn't followed. `skip`: a part that isn't read."""
        found: set[str] = set()
        seen: set[int] = set() if not without else {id(cls.methods[without])}
        self._follow(cls.module, cls, function, body, found, seen, skip)
        return found

    def _follow(
        self, module: str, cls: Class | None, function: ast.FunctionDef, body: list[ast.stmt], found: set[str],
        seen: set[int], skip: ast.AST | None = None,
    ) -> None:  # fmt: skip
        local = self._locals(module, cls, function)
        todo: list[ast.AST] = list(body)
        while todo:
            node = todo.pop()
            if node is skip:
                continue
            todo.extend(ast.iter_child_nodes(node))
            if isinstance(node, ast.Call):
                found |= self._effects & {self._made(cls, node, local)}
            for at, owner, target in self._targets(module, cls, node, local):
                if id(target) not in seen:
                    seen.add(id(target))
                    self._follow(at, owner, target, target.body, found, seen)

    def _made(self, cls: Class | None, call: ast.Call, local: Mapping[str, Class]) -> str:
        """The class of what a call makes: ``Class(...)``, or ``replace(value, ...)`` of a value of it; else anything."""
        name = (_names(call.func) or [""])[-1]
        kind = self._type(cls, call.args[0], local) if name == "replace" and call.args else None
        return name if kind is None else kind.name

    def _targets(
        self, module: str, cls: Class | None, node: ast.AST, local: Mapping[str, Class]
    ) -> Iterable[tuple[str, Class | None, ast.FunctionDef]]:
        """Functions that a node calls or hands on: ``self.method``, ``self.part.method``, ``name.method``, ``function``."""
        if isinstance(node, ast.Attribute):
            owner = self._type(cls, node.value, local)
            if owner is not None and node.attr in owner.methods:
                yield owner.module, owner, owner.methods[node.attr]
        elif isinstance(node, ast.Name):
            found = self._code.function(module, node.id)
            if found is not None:
                yield found[0], None, found[1]

    def _type(self, cls: Class | None, node: ast.AST, local: Mapping[str, Class]) -> Class | None:
        if isinstance(node, ast.Name):
            return cls if node.id == "self" else local.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._type(cls, node.value, local)
            return None if owner is None else self._code.attribute(owner, node.attr)
        return None

    def _locals(self, module: str, cls: Class | None, function: ast.FunctionDef) -> dict[str, Class]:
        """Arguments with a type, and short names for parts: ``tenure = self._tenure``."""
        local: dict[str, Class] = {}
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            known = self._code.known(module, argument.annotation)
            if known is not None:
                local[argument.arg] = known
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                pairs = [(node.targets[0], node.value)]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
                for target, value in pairs:
                    kind = self._type(cls, value, local)
                    if isinstance(target, ast.Name) and kind is not None:
                        local[target.id] = kind
        return local
