"""What a life writes down for its supervisor: it is there after SIGKILL, and is about the right life."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.core.scene import member, quorum
from torchft_x.core.types import Quorum, State
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.group.last_quorum_file import LastQuorumFile, make_record, open_record, read_word, unwritten
from torchft_x.rpc.proto import torchft_x_pb2 as pb

ROOT = Path(__file__).parents[3]


def made(id: int, members: int = 2) -> Quorum:
    return quorum(*(member(f"{i}:1", State(3, 1)) for i in range(members)), id=id)


def proto(id: int, members: int = 2) -> pb.Quorum:
    return messages.QUORUM.encode(made(id, members))


def opened(folder: Path, name: str = "a:1", before: int = 0) -> LastQuorumFile:
    path = str(folder / "received")
    make_record(path, "chain", proto(before).SerializeToString() if before else b"")
    return open_record(path, name)


def told(folder: Path) -> tuple[pb.LastWord | None, int]:
    """The word, and the id of the newest quorum of the chain."""
    word, before = read_word(str(folder / "received"))
    return (pb.LastWord.FromString(word) if word else None), pb.Quorum.FromString(before).id


def test_a_life_that_never_came_so_far_has_no_word(tmp_path: Path) -> None:
    make_record(str(tmp_path / "received"), "chain", proto(5).SerializeToString())
    assert told(tmp_path) == (None, 5)


def test_it_never_had_any(tmp_path: Path) -> None:
    record = opened(tmp_path, before=5)
    assert (record.chain, record.before) == ("chain", made(5))
    assert told(tmp_path) == (pb.LastWord(replica_id="a:1", chain="chain"), 5)
    record.close()


def test_the_newest_it_had(tmp_path: Path) -> None:
    record = opened(tmp_path, before=5)
    for i in range(6, 60):
        record.keep(proto(i, 1 + i % 7))
    record.keep(proto(40))  # of a lighthouse that knew less
    word, newest = told(tmp_path)
    assert word is not None
    assert (messages.QUORUM.decode(word.quorum), newest) == (made(59, 1 + 59 % 7), 59)
    assert (tmp_path / "received").stat().st_size < 64 + 6 * len(proto(1, 7).SerializeToString())
    record.close()


def test_the_next_manager_of_a_process_goes_on_from_the_one_before(tmp_path: Path) -> None:
    first = opened(tmp_path, "a:1")
    first.keep(proto(6))
    with pytest.raises(ConfigError, match="another Manager of this group uses it"):
        open_record(first.path, "a:2")
    first.close()
    first.close()
    second = open_record(first.path, "a:2")
    assert second.before == made(6)
    assert told(tmp_path) == (pb.LastWord(replica_id="a:2", chain="chain"), 6)
    second.close()


def test_the_older_one_counts_until_the_newer_is_complete(tmp_path: Path) -> None:
    """As if SIGKILL had come between the two writes."""
    record = opened(tmp_path)
    record.keep(proto(6))
    header = (tmp_path / "received").read_bytes()[:64]
    record.keep(proto(7, 9))
    record.close()
    with open(tmp_path / "received", "r+b") as f:
        f.write(header)
    assert told(tmp_path)[1] == 6


def test_it_is_there_after_sigkill(tmp_path: Path) -> None:
    make_record(str(tmp_path / "received"), "chain", b"")
    code = """
        import sys
        from tests.rpc.group.test_last_quorum_file import open_record, proto
        record = open_record(sys.argv[1], "a:1")
        for i in range(1, 1 << 40):
            record.keep(proto(i, 1 + i % 5))
            print(i, flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "received")], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    last = 0
    while last < 500:
        last = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    last = max([last, *map(int, child.stdout.read().split())])
    child.wait()
    assert told(tmp_path)[1] in (last, last + 1)


def test_what_can_not_be_written_stays_as_it_was(tmp_path: Path) -> None:
    """A disk that is full; and the sentence says so."""
    record = opened(tmp_path)
    record.keep(proto(6))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError) as caught:
            record.keep(proto(7, 50))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "it stops before it follows one that is not written down" in unwritten(record.path, caught.value)
    record.close()
    assert told(tmp_path)[1] == 6


@pytest.mark.parametrize("at", [0, 16, 24, 70])
def test_what_is_damaged_is_not_believed(tmp_path: Path, at: int) -> None:
    record = opened(tmp_path)
    record.keep(proto(6))
    record.close()
    path = tmp_path / "received"
    data = bytearray(path.read_bytes())
    where = int.from_bytes(data[8:16], "little") + 3 if at == 70 else at
    data[where] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RefusedError):
        told(tmp_path)
    with pytest.raises(ConfigError, match="can't be used: it"):
        open_record(str(path), "a:2")


def test_a_file_that_no_supervisor_has_made(tmp_path: Path) -> None:
    path = tmp_path / "received"
    with pytest.raises(ConfigError, match="No such file"):
        open_record(str(path), "a:1")
    path.touch()
    with pytest.raises(ConfigError, match="not what a supervisor makes"):
        open_record(str(path), "a:1")
    os.unlink(path)
    path.symlink_to("/dev/full")
    with pytest.raises(ConfigError):
        open_record(str(path), "a:1")
