"""Lines for people, or for a collector."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest

from torchft_x import log_lines

JSON = {"TORCHFT_X_LOG_FORMAT": "json"}


def test_for_people_a_line_is_its_text() -> None:
    assert log_lines.line("group 1 died", group="0", environ={}) == "group 1 died"


def test_for_a_collector_it_is_one_object_on_one_line() -> None:
    made = log_lines.line('a "quoted"\n\x1b[31mtext', "warning", environ=JSON, role="trainer", group="0", rank=None)
    assert made.isprintable()
    fields = json.loads(made)
    assert isinstance(fields.pop("t"), float)
    assert fields == {"level": "warning", "message": 'a "quoted"\n\x1b[31mtext', "role": "trainer", "group": "0"}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b"loss 0.1\r", "loss 0.1"),
        (b"  indented", "  indented"),
        (b"\xff", "\ufffd"),
        (b"{broken: json}", "{broken: json}"),
        (b"", ""),
    ],
)
def test_a_scripts_line_is_wrapped(output: bytes, message: str) -> None:
    fields = json.loads(log_lines.wrapped(output, group="1", stream="stdout"))
    del fields["t"]
    assert fields == {"message": message, "group": "1", "stream": "stdout"}


def test_a_scripts_own_object_stays_as_it_is() -> None:
    assert log_lines.wrapped(b'{"loss": 0.1}', group="1") == b'{"loss": 0.1}'


def test_records_of_logging() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log_lines.JsonFormatter(str.upper, role="lighthouse"))
    logger = logging.Logger("made")
    logger.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it %s", "failed")
    (line,) = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert (fields["level"], fields["role"]) == ("error", "lighthouse")
    assert fields["message"].startswith("IT FAILED\nTRACEBACK")
    assert "VALUEERROR: NO" in fields["message"]


class Packets(io.RawIOBase):
    """A file that keeps its writes apart, as who follows it may read them."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.got.append(bytes(data))
        return len(data)


def test_a_line_and_its_end_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an unbuffered Python `print` they are two, and TorchX showed another role's line between them."""
    packets = Packets()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(packets, write_through=True))  # type: ignore[type-var]
    log_lines.print_line("group 1 died")
    log_lines.write("Run directory: runs/1", sys.stderr)
    assert packets.got == [b"group 1 died\n", b"Run directory: runs/1\n"]
    log_lines.write("nobody is there", None)


def test_a_full_disk_behind_the_output_ends_nothing() -> None:
    """A line that could not be written ended the lighthouse, or a supervisor between two attempts, and so the job."""
    with open("/dev/full", "wb", buffering=0) as full:
        log_lines.write("Run directory: runs/1", io.TextIOWrapper(full, write_through=True))
