"""Processes. What waits for any child runs in a process of its own, so that pytest's children are left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.util import scaled, wait_for
from torchft_x.launch.process import process_tree


def python(code: str) -> subprocess.CompletedProcess[str]:
    head = "import os, signal, subprocess, sys, time\nfrom torchft_x.launch.process import process_tree\n"
    command = [sys.executable, "-c", head + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(20), check=False)


def test_a_subreaper_finds_and_ends_orphans_in_other_sessions() -> None:
    done = python("""
process_tree.become_subreaper()
middle = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=-3, stderr=-3).pid)"  # -3: DEVNULL
pid = int(subprocess.run([sys.executable, "-c", middle], capture_output=True, text=True).stdout)
assert process_tree.descendants(os.getpid()) == [pid], "the orphan is ours now"
assert process_tree.kill_descendants() == {pid: -9}
assert process_tree.descendants(os.getpid()) == []
""")
    assert done.returncode == 0, done.stderr


def test_collecting_children() -> None:
    done = python("""
assert process_tree.reap() == {}
children = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({i})"]) for i in (1, 2)]
found = {}
while len(found) < 2:
    found |= process_tree.reap()
assert found == {children[0].pid: 1, children[1].pid: 2}
""")
    assert done.returncode == 0, done.stderr


def test_the_parents_death_is_seen(tmp_path: Path) -> None:
    watcher = f"""
import os, pathlib, time
from torchft_x.launch.process import process_tree
process_tree.when_parent_dies(None, lambda: (pathlib.Path({str(tmp_path / "died")!r}).write_text("x"), os._exit(0)))
print(os.getpid(), flush=True)
time.sleep(1000)
"""
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {watcher!r}]).wait()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline() or 0)
    assert not (tmp_path / "died").exists()
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: (tmp_path / "died").exists(), what="the watcher")
    wait_for(lambda: not process_tree.is_alive(pid))
