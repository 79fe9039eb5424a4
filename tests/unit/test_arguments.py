"""Options in commands of our own; the script's words stay as they are."""

from __future__ import annotations

from torchft_x.arguments import option, set_option


def test_options_are_set_before_the_script() -> None:
    script = ["--", "x.py", "--groups", "7"]
    words = ["supervise", "--groups", "2", *script]
    set_option(words, "--groups", "3")
    set_option(words, "--alive", "/a")
    assert words == ["supervise", "--groups", "3", "--alive", "/a", *script]
    assert (option(words, "--groups"), option(words, "x.py")) == ("3", None)
    assert option(["--bind", "a", "--bind=b"], "--bind") == "b"
