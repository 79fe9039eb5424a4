"""Wall-clock time of ``torchft_x status``: ``python -m benchmarks.status_time --groups 64 --rounds 20``.

A real lighthouse has the given number of groups in a quorum, and a run directory holds its address and an event log of
each group. The command runs as a process of its own: through the lighthouse's page, and through gRPC where there is no
page. The time of an interpreter that does nothing, which is part of all others, is measured beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.fanout import PATIENT
from benchmarks.groups import OurGroups, change
from benchmarks.libraries import ours
from benchmarks.lighthouse import Served
from benchmarks.processes import free_port

STATUS = [sys.executable, "-m", "torchft_x", "status"]
BOUND = 60.0  # seconds for one command
_EVENTS = 2000  # events of each group: about a minute of steps


def clocked(command: list[str], expect: str) -> float:
    """Run the command, and return its seconds. Raise RuntimeError if it fails or its output lacks `expect`."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=BOUND)
    took = time.perf_counter() - began
    if done.returncode or expect not in done.stdout:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}"
        )
    return took


def run_dir(folder: Path, bind: str, page: str | None, groups: int) -> str:
    """Make a run directory with the lighthouse's addresses and made-up event logs, and return its path."""
    (folder / "events").mkdir(parents=True)
    (folder / "lighthouse").write_text(f"http://{bind}\n")
    if page is not None:
        (folder / "page").write_text(f"{page}\n")
    for group in range(groups):
        words = {"mono": 1.0, "pid": 1, "role": "trainer", "group": str(group), "event": "commit"}
        lines = (json.dumps({"t": float(n), "step": n, **words}) for n in range(_EVENTS))
        (folder / "events" / f"trainer-{group}-0-{group}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


async def measure(groups: int, rounds: int, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        page = f"127.0.0.1:{free_port()}"
        served = Served(ours(), folder, *PATIENT, "--http_bind", page)
        stack.callback(served.stop)
        members = OurGroups(served.bind, groups)
        await members.open()
        await change(members, groups, burst=False)
        by_page = run_dir(folder / "page", served.bind, f"http://{page}", groups)
        by_grpc = run_dir(folder / "grpc", served.bind, None, groups)
        arms = {
            "an interpreter that ends at once": ([sys.executable, "-c", "print('ok')"], "ok"),
            "status RUN_DIR": ([*STATUS, by_page], "group"),
            "status RUN_DIR --json": ([*STATUS, by_page, "--json"], "groups"),
            "status RUN_DIR, no page (grpc)": ([*STATUS, by_grpc], "group"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for i in range(-2, rounds):  # the first two only warm up
            for name, (command, expect) in arms.items():
                took = await asyncio.to_thread(clocked, command, expect)
                if i >= 0:
                    seconds[name].append(took)
        await members.close()
    for name, values in seconds.items():
        print(f"{groups:5} groups, {name:34} median {median(values):.3f} s, worst {max(values):.3f} s, n {len(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-status-"))
    try:
        asyncio.run(measure(args.groups, args.rounds, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
