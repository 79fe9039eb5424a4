from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure import source, table

FILES = {
    "__init__.py": "from torchft_x.core.deep.rule import decide\n",
    "errors.py": "class Error(Exception):\n    pass\n",
    "core/__init__.py": "",
    "core/types.py": "from torchft_x.errors import Error\n",
    "core/deep/__init__.py": "from torchft_x.core.deep.rule import decide\n",
    "core/deep/rule.py": "from torchft_x.core.types import State\n\n\ndef decide():\n    import torchft_x.core.deep.table\n",
    "core/deep/table.py": "from torchft_x.core.deep import rule\n\n\nclass Table:\n    def look(self):\n        return 1\n",
    "core/job/__init__.py": "",
    "core/job/outcome.py": "from torchft_x.core.types import State\n",
    "rpc/__init__.py": "",
    "rpc/server.py": "import grpc\n\nfrom torchft_x import errors\nfrom torchft_x.core.deep.rule import decide\n",
    "rpc/made_pb2.py": "from torchft_x.rpc import server\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> list[source.Module]:
    for name, text in FILES.items():
        path = tmp_path / "torchft_x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source.read(tmp_path)


def test_imports_are_found_wherever_they_stand_and_those_of_faces_do_not_count(modules: list[source.Module]) -> None:
    assert source.arrows(modules) == {
        "errors": set(),
        "core.types": {"errors"},
        "core.deep.rule": {"core.types", "core.deep.table"},
        "core.deep.table": {"core.deep.rule"},
        "core.job.outcome": {"core.types"},
        "rpc.server": {"errors", "core.deep.rule"},
    }


def test_a_relative_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torchft_x").mkdir()
    (tmp_path / "torchft_x" / "here.py").write_text("from . import there\n")
    with pytest.raises(ValueError, match="here, line 1: a relative import"):
        source.read(tmp_path)


def test_packages_import_from_packages_and_the_top_is_a_leaf(modules: list[source.Module]) -> None:
    arrows = source.package_arrows(modules, source.arrows(modules))
    assert arrows == {"core": set(), "core.deep": {"core"}, "core.job": {"core"}, "rpc": {"core.deep"}}
    assert source.circles(arrows) == []


def test_a_circle_of_modules_is_found_once(modules: list[source.Module]) -> None:
    assert source.circles(source.arrows(modules)) == [["core.deep.rule", "core.deep.table"]]


def test_functions_are_named_with_their_classes(modules: list[source.Module]) -> None:
    assert [(f.name, f.lines) for f in source.functions(modules)] == [("decide", 2), ("Table.look", 2)]


def test_the_protocol_is_core_without_the_outcome_of_the_job(modules: list[source.Module]) -> None:
    assert [m.name for m in modules if source.is_protocol(m) and not m.is_face] == [
        "core.deep.rule",
        "core.deep.table",
        "core.types",
    ]


def test_an_arrow_that_follows_from_others_is_reduced_away() -> None:
    assert source.reduced({"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}) == {
        "a": {"b", "d"},
        "b": {"c"},
        "c": set(),
        "d": set(),
    }
    with pytest.raises(ValueError, match="circles"):
        source.reduced({"a": {"b"}, "b": {"a"}})


@pytest.mark.usefixtures("modules")
def test_the_table_has_a_column_for_each_checkout(tmp_path: Path) -> None:
    lines = table.lines([("old", table.counted(tmp_path)), ("here", table.counted(tmp_path))])
    assert lines[0].split() == ["|", "|", "old", "|", "here", "|"]
    assert len(lines) == 2 + len(table.ROWS)
    assert len({len(line) for line in lines}) == 1
    assert "2 (core.deep)" in "\n".join(lines)
