"""The pages about the code name what is there: every path, class and function exists, and every link resolves."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
NAMING = [CONTRIBUTING, DOCS / "dev/design.md", DOCS / "glossary.md"]
PAGES = [ROOT / "README.md", CONTRIBUTING, *sorted(DOCS.rglob("*.md"))]
_TABLE = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ntable = [")[2].partition("\n]")[0]
_ROWS = re.findall(r'^    "([\w.]+):', _TABLE, flags=re.MULTILINE)
PACKAGES = [row for row in _ROWS if (ROOT / "torchft_x" / row.replace(".", "/") / "__init__.py").is_file()]
"""Packages in the import table, bottom up. A module may have a row of its own there."""
_PATH = re.compile(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(py|md|toml)")
_CLASS = re.compile(r"_?[A-Z]\w*[a-z]\w*(\.\w+(\(\))?)?")
_FUNCTION = re.compile(r"\w+\(\)")
_FOREIGN = {"None", "True", "False", "backward()"}  # not ours


def code_in(text: str) -> list[str]:
    """Code spans, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a file, or all files below, define: classes, functions, fields and methods (also as `Class.method`)."""
    found: set[str] = set()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            found |= _defined(node)
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    found |= {name for own in _defined(member) for name in (own, f"{node.name}.{own}")}
    return frozenset(found)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def is_path(code: str) -> bool:
    return _PATH.fullmatch(code) is not None


def is_name(code: str) -> bool:
    return code not in _FOREIGN and bool(_CLASS.fullmatch(code) or _FUNCTION.fullmatch(code))


def found(code: str) -> Path | None:
    """The file or directory of a path as pages write it: from the root, or from the package."""
    return next((base / code for base in (ROOT, ROOT / "torchft_x") if (base / code).exists()), None)


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    everything = names_in(ROOT / "torchft_x") | names_in(ROOT / "components")
    for code in code_in(page.read_text(encoding="utf-8")):
        if is_path(code):
            assert found(code), f"{page.name} names the path {code}"
        elif is_name(code):
            assert code.removesuffix("()") in everything, (
                f"{page.name} names {code}, which nothing in torchft_x defines"
            )


def test_a_name_behind_a_path_is_defined_there() -> None:
    """In the tables of CONTRIBUTING.md, where the answer to a question is a file and what to look for in it."""
    rows = [row for row in CONTRIBUTING.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    checked = 0
    for row in rows:
        file: Path | None = None
        for code in code_in(row):
            if is_path(code):
                file = found(code)
            elif is_name(code) and file is not None and file.suffix == ".py":
                assert code.removesuffix("()") in names_in(file), f"{file.relative_to(ROOT)} defines no {code}"
                checked += 1
    assert checked > 20


def test_the_maps_have_every_package() -> None:
    named = set(code_in(CONTRIBUTING.read_text(encoding="utf-8")))
    assert not set(PACKAGES) - named
    core = (ROOT / "torchft_x" / "core" / "__init__.py").read_text(encoding="utf-8")
    assert [
        package for package in re.findall(r"^    (\w+) +\S", core, flags=re.MULTILINE) if f"core.{package}" in PACKAGES
    ] == [package.removeprefix("core.") for package in PACKAGES if package.startswith("core.")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), f"{page.relative_to(ROOT)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{target.name} has no heading {anchor!r}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads)


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in (*DOCS.glob("*.md"), *(DOCS / "dev").glob("*.md"))]
    missing = [page for page in pages if f"]({page})" not in index and page != "README.md"]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_wrap_at_120_columns(page: Path) -> None:
    """But for rows of tables, which can't be cut."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    assert not [n for n, line in lines if len(line) > 120 and not line.startswith("|")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


INTO_ANOTHERS = {"launch.plugin.namespace"}
"""Installed into a namespace of TorchX's, which must not have an __init__.py."""


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - INTO_ANOTHERS))
def test_a_package_names_its_own_files(package: str) -> None:
    """The lists in the docstrings of packages: "* `file`: what it decides or does"."""
    folder = ROOT / "torchft_x" / package.replace(".", "/")
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert text, f"{package} says nothing of itself"
    for entry in re.findall(r"^\* .*(?:\n  .*)*", text, flags=re.MULTILINE):
        for name in re.findall(r"`([a-z_]\w*)`(?=[:,])", entry):
            assert (folder / f"{name}.py").exists(), f"{package} names {name}, which is no file of it"
    files = [file.stem for file in folder.glob("*.py") if file.stem != "__init__" and not file.stem.endswith("_pb2")]
    missing = [name for name in files if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"{package} does not list {missing}"


_DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
_FILE = re.compile(r".*\.(py|json|toml|txt|log|svg|html|md|sh|N)")
_OF_OTHERS = (
    "torch",
    "torchft",
    "torchx",
    "torchx_plugins",
    "checkpointing",
    "device_mesh",
    "process_group",
    "state",
    "trainer",
)
"""First parts of names of torch, torchft, TorchX and trainers."""
_PATTERNS = {"module.qualname", "torchft_x.compat.MODULE", "torchft_x.dropped_steps"}


@cache
def identifiers() -> frozenset[str]:
    """All names that the code of the package and of the simulator uses, and those of its modules."""
    found = set()
    for path in [*(ROOT / "torchft_x").rglob("*.py"), *(ROOT / "tests/sim").rglob("*.py")]:
        found |= set(path.relative_to(ROOT).with_suffix("").parts)
        with path.open("rb") as f:
            found |= {token.string for token in tokenize.tokenize(f.readline) if token.type == tokenize.NAME}
    return frozenset(found)


def _prose(path: Path) -> str:
    """Return a page's text, or the comments and docstrings of a file."""
    if path.suffix == ".md":
        return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    with path.open("rb") as f:
        tokens = tokenize.tokenize(f.readline)
        return "\n".join(t.string for t in tokens if t.type == tokenize.COMMENT or t.string.startswith('"""'))


@pytest.mark.parametrize("folder", ["torchft_x", "components", "docs", "tests/sim"])
def test_a_dotted_name_in_a_docstring_comment_or_page_exists(folder: str) -> None:
    """`a.b.c` in backquotes: each part is a name of the code."""
    unknown = []
    for path in sorted((ROOT / folder).rglob("*.*")):
        if path.suffix not in (".py", ".md") or path.name.endswith("_pb2.py"):
            continue
        for name in _DOTTED.findall(_prose(path)):
            parts = name.split(".")
            foreign = parts[0] in _OF_OTHERS or name in _PATTERNS or _FILE.fullmatch(name)
            if not foreign and not set(parts) <= identifiers():
                unknown.append(f"{path.relative_to(ROOT)}: {name}")
    assert not unknown, "\n".join(unknown)
