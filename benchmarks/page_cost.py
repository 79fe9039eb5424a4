"""Cost of the page to a lighthouse: ``python -m benchmarks.page_cost --groups 8 64 --rounds 40``.

Three lighthouses change their quorums in turn, in rounds of alternating order. The first has no page. The page of the
second is polled by a browser each second and by Prometheus each 5 s; that of the third by a storm of strangers. The
program prints medians, and the median of the rounds' ratios to the lighthouse without a page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.fanout import PATIENT
from benchmarks.groups import OurGroups, change
from benchmarks.libraries import Library, ours
from benchmarks.lighthouse import Served
from benchmarks.processes import free_port

ARMS = {"off": ("--http_bind", "off"), "on": (), "stormed": ()}


POLLER = """
import sys, time, urllib.request
url, paths = sys.argv[1], [(word.split("=")[0], float(word.split("=")[1])) for word in sys.argv[2:]]
due = dict.fromkeys((path for path, _ in paths), 0.0)
while True:
    for path, each in paths:
        if time.monotonic() >= due[path]:
            due[path] = time.monotonic() + each
            try:
                urllib.request.urlopen(url + path, timeout=5).read()
            except OSError:
                pass
    time.sleep(min(0.05, *(each for _, each in paths), 0.05))
"""
"""Program that requests paths, each at its period in seconds, on a new connection each time; 0: as fast as it can."""
POLLED = {"off": (), "on": ("status.json=1", "metrics=5"), "stormed": ("status.json=0",)}
STORM = 4  # processes that poll without a pause


@contextlib.contextmanager
def polled(arm: str, url: str) -> Iterator[None]:
    """Poll the page by processes of the lowest priority, which run all the time, so that their load hits all arms."""
    command = ["nice", "-n", "19", sys.executable, "-c", POLLER, url, *POLLED[arm]]
    number = {"off": 0, "on": 1, "stormed": STORM}[arm]
    pollers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for poller in pollers:
            poller.kill()
            poller.wait()


async def measure(library: Library, number: int, rounds: int, folder: Path) -> None:
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    memory: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        up = {}
        for arm, flags in ARMS.items():
            port = free_port()
            served = Served(library, folder, *PATIENT, *(flags or ("--http_bind", f"127.0.0.1:{port}")))
            stack.callback(served.stop)
            groups = OurGroups(served.bind, number)
            await groups.open()
            stack.enter_context(polled(arm, f"http://127.0.0.1:{port}/"))
            up[arm] = (served, groups)
        for i in range(-2, rounds):  # the first two only warm up
            order = list(ARMS)[:: 1 if i % 2 == 0 else -1]
            for arm in order:
                for _, idle in up.values():
                    await idle.refresh()
                took = await change(up[arm][1], number, burst=False)
                if i >= 0:
                    seconds[arm].append(took)
            await asyncio.sleep(0.1)
        for arm, (served, groups) in up.items():
            memory[arm] = served.memory()
            await groups.close()
    for arm in ARMS:
        pairs = [a / b for a, b in zip(seconds[arm], seconds["off"], strict=True)]
        print(
            f"{number:5} groups, {arm:8} quorum change {1e3 * median(seconds[arm]):7.2f} ms, x {median(pairs):.3f}; "
            f"memory {memory[arm]:6.1f} MB, x {memory[arm] / memory['off']:.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-page-"))
    try:
        for number in args.groups:
            asyncio.run(measure(ours(), number, args.rounds, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
