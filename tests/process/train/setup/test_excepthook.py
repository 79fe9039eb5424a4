"""A script that is refused and does not handle it ends with the sentence and code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import scaled

ROOT = Path(__file__).parents[4]
SCRIPT = """
import atexit
from torchft_x.errors import RefusedError, UnsavedError
from torchft_x.train.setup.excepthook import end_with_a_sentence
end_with_a_sentence(); end_with_a_sentence()
atexit.register(print, "at exit")
"""


@pytest.mark.parametrize(
    ("raised", "code", "err"),
    [
        ("RefusedError('No.')", 2, "torchft_x: No.\n"),
        ("UnsavedError('Lost.')", 73, "torchft_x: Lost.\n"),
        ("KeyError('x')", 1, "KeyError: 'x'\n"),
    ],
)
def test_an_uncaught_refusal_is_final(raised: str, code: int, err: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}raise {raised}"], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60)
    )
    assert (done.returncode, done.stdout) == (code, "at exit\n")
    assert done.stderr.endswith(err)
    assert ("Traceback" in done.stderr) == (code == 1)
