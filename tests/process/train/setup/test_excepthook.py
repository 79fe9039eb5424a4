"""A script that is refused and does not handle it ends with the sentence and code 2."""

from __future__ import annotations

import os

import pytest

from tests.process.programs import python
from torchft_x.errors import ConfigError, FaultyError, RefusedError, StepError, UnsavedError
from torchft_x.train.setup.excepthook import exit_code

SCRIPT = """
import atexit
from torchft_x.errors import FaultyError, RefusedError, UnsavedError
from torchft_x.train.setup.excepthook import end_with_a_sentence
end_with_a_sentence(); end_with_a_sentence()
atexit.register(print, "at exit")
"""


@pytest.mark.parametrize(
    ("raised", "code", "err"),
    [
        ("RefusedError('No.')", 2, "torchft_x: No.\n"),
        ("UnsavedError('Lost.')", 73, "torchft_x: Lost.\n"),
        ("FaultyError('Wrong.')", 71, "torchft_x: Wrong.\n"),
        ("KeyError('x')", 1, "KeyError: 'x'\n"),
    ],
)
def test_an_uncaught_refusal_is_final(raised: str, code: int, err: str) -> None:
    done = python("-c", f"{SCRIPT}raise {raised}", code=code)
    assert done.stdout == "at exit\n"
    assert done.stderr.endswith(err)
    assert ("Traceback" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (None, 0),
        (RefusedError("No."), 2),
        (ConfigError("Not so."), 2),
        (UnsavedError("Lost."), os.EX_CANTCREAT),
        (FaultyError("Wrong."), os.EX_OSERR),
        (StepError("It failed."), 1),
    ],
)
def test_an_exit_code_and_a_sentence(raised: Exception | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        if raised is not None:
            raise raised

    assert exit_code(main) == code
    said = capsys.readouterr().err
    assert said.endswith(f": {raised}\n") if raised else said == ""
