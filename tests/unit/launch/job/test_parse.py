"""A user's words as values: each mistake is one sentence that names the parameter."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.job.parse import (
    parse_addresses,
    parse_bool,
    parse_command,
    parse_counts,
    parse_env,
    parse_mounts,
)


def refused(sentence: str):
    return pytest.raises(ConfigError, match=sentence)


@pytest.mark.parametrize(("word", "meant"), [("True", True), ("false", False), ("TRUE", True), (" False ", False)])
def test_words_for_truth(word: str, meant: bool) -> None:
    assert parse_bool(word, what="--debug") is meant


@pytest.mark.parametrize("word", ["yes", "1", "on", "", "0", "no"])
def test_other_words_are_not_taken_for_false(word: str) -> None:
    with refused(f"--debug '{word}' is neither True nor False"):
        parse_bool(word, what="--debug")


def test_addresses() -> None:
    assert parse_addresses("a:1", what="x") == ("a:1",)
    assert parse_addresses(" http://[::1]:2", what="x") == ("http://[::1]:2",)
    assert parse_addresses("a:1, b:2", what="x") == ("a:1", "b:2")
    with refused("x 'a:1,,b:2' has nothing between two commas"):
        parse_addresses("a:1,,b:2", what="x")


@pytest.mark.parametrize(
    "options",
    [
        "type=bind,src=/a,dst=/b,readonly,type=device,src=/dev/x",
        ["type=bind", "src=/a", "dst=/b", "readonly", "type=device", "src=/dev/x"],  # as TorchX's command line gives it
        ["type=bind,src=/a,dst=/b,readonly", "type=device,src=/dev/x"],  # as one writes it in Python
    ],
)
def test_mounts(options: object) -> None:
    bind, device = parse_mounts(options)  # type: ignore[arg-type]
    assert (bind.src_path, bind.dst_path, bind.read_only) == ("/a", "/b", True)
    assert device.src_path == "/dev/x"
    assert parse_mounts(None) == parse_mounts("") == ()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("x", "unknown mount option x"),
        ("src=/a,dst=/b", "type must be specified first"),
        ("type=bind,src=/a", "dst=PATH is missing"),
        ("type=bind,dst=/a", "src=PATH is missing"),
        ("type=tape,src=/a,dst=/b", "invalid mount type 'tape'"),
        ("type=device,src=/dev/x,perm=q", "q is not a valid permission"),
    ],
)
def test_mistakes_in_mounts(words: str, reason: str) -> None:
    with refused(f"--mounts {words}: {reason}.*; write type=bind"):
        parse_mounts(words)


def test_counts() -> None:
    assert parse_counts("1, 2,3", what="--islands") == (1, 2, 3)
    assert parse_counts("", what="--islands") == ()
    for wrong in ("0", "1,,2", "-1", "two", "1.5", "\u0662"):
        with refused("--islands .* is not a list of numbers"):
            parse_counts(wrong, what="--islands")


def test_commands() -> None:
    assert parse_command("a 'b c'", what="what") == ("a", "b c")
    assert parse_command(["a", "b c"], what="what") == ("a", "b c")
    for nothing in ("", [], [""]):
        with refused("what: the command"):
            parse_command(nothing, what="what")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("A=1,B=2;C=3", {"A": "1", "B": "2", "C": "3"}),
        ("A=1=2", {"A": "1=2"}),
        ("A=,B=1", {"A": "", "B": "1"}),
        ("A=x,y,B= s ", {"A": "x,y", "B": " s "}),
        ("A='',B=\"\"", {"A": "", "B": ""}),
        ({"A": "1,B=2"}, {"A": "1,B=2"}),
        (None, {}),
    ],
)
def test_variables(text: str | dict[str, str] | None, expected: dict[str, str]) -> None:
    assert parse_env(text, what="--env") == expected


def test_what_is_no_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="--env: 'foo' is no variable; write A=1,B=2"):
        parse_env("foo", what="--env")
