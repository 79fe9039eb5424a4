"""Names of checkpoints, and which of them may go."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.transfer.durable import names
from torchft_x.transfer.durable.names import Name, outdated


def test_a_name_is_read_as_it_was_written() -> None:
    assert names.parse(str(names.name(100, "0-abc"))) == Name(100, "0-abc")
    assert str(names.name(100, "0-abc")) == "step-00000100.0-abc"
    assert names.parse(str(names.name(10**9, "0"))) == Name(10**9, "0")


@pytest.mark.parametrize("writer", ["0:5f2c-9", "a group with spaces", "../../etc", "ü", "x" * 500, " ", "a\nb"])
def test_any_writer_has_a_name_of_its_own(writer: str) -> None:
    found = names.name(1, writer)
    assert names.parse(str(found)) == found
    assert found != names.name(1, writer + ":")


def test_a_step_is_no_negative_number() -> None:
    with pytest.raises(ConfigError, match="step -1"):
        names.name(-1, "0")


@pytest.mark.parametrize(
    "folder", ["step-100.a", "step-00000100", "step-00000100.a/b", "step-000000100.a", "job.json", "step-00000100.", ""]
)
def test_what_else_is_there_is_none_of_ours(folder: str) -> None:
    assert names.parse(folder) is None


def test_a_greater_step_is_newer_whoever_wrote_it() -> None:
    assert Name(99, "z") < Name(100, "a") < Name(1000, "a")


def test_what_is_kept_and_what_goes() -> None:
    ones = [Name(100, "a"), Name(200, "a"), Name(300, "a"), Name(400, "b")]
    torn = [Name(150, "a"), Name(400, "a"), Name(450, "b")]
    newest = Name(400, "b")
    assert outdated([*ones, *torn], ones, newest, 2) == [Name(100, "a"), Name(150, "a"), Name(200, "a"), Name(400, "a")]
    assert outdated([*ones, *torn], ones, newest, 1) == [*sorted([*ones[:3], *torn[:2]])]
    assert outdated([*ones, *torn], ones, newest, 9) == torn[:2]


def test_what_is_newer_is_somebody_elses() -> None:
    assert outdated([Name(100, "a"), Name(500, "b")], [Name(100, "a"), Name(500, "b")], Name(100, "a"), 1) == []
