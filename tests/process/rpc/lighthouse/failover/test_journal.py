"""What a lighthouse writes down: it is there after SIGKILL, and nothing that can't be relied on is believed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.rpc.lighthouse.failover.journals import RUN, opened, read
from torchft_x.errors import ConfigError
from torchft_x.rpc.lighthouse.failover.journal import open_local_journal

ROOT = Path(__file__).parents[5]


def test_one_lighthouse_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match=r"Another lighthouse runs and uses .*state: .*--run_dir"):
        open_local_journal(str(tmp_path / "state"), boot_id="boot", run=RUN)
    first.close()
    opened(tmp_path).close()


def test_it_survives_a_killed_process_at_any_point(tmp_path: Path) -> None:
    """A real process writes as fast as it can, with growing ids, and is killed; what is found is whole."""
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.unit.rpc.lighthouse.failover.journals import *
        journal = opened(Path(sys.argv[1]))
        members = made(1, members=20).members
        for i in range(2, 10**9):
            value = Quorum(i, i, i, members[: 1 + i % 20], lease=120.0)
            journal.keep(JournalEntry(value, i, MEMBERS), messages.pack(value))
            if i % 50 == 0:
                print(i, flush=True)
    """)
    for round in range(3):
        folder = tmp_path / str(round)
        folder.mkdir()
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        said = [int(writer.stdout.readline()) for _ in range(4 + 3 * round)]
        writer.send_signal(signal.SIGKILL)
        said += [int(x) for x in writer.stdout.read().split()]
        writer.wait()
        found = read(folder).entry
        assert said[-1] <= found.quorum.id < said[-1] + 51
        assert found.granted_through == found.quorum.id
        assert len(found.quorum.members) == 1 + found.quorum.id % 20
