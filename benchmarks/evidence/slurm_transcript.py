"""Transcript of a node set DOWN, by hand and under slurm_ft: docs/slurm.md#a-node-set-down-as-you-see-it.

    python -m benchmarks.evidence.slurm_transcript > transcript.md

Two groups train on nodes that are network namespaces of this machine, under a Slurm with its default times. The first
job has no launcher: a lighthouse runs on the login node, the groups are an array of batch scripts, and an
administrator sets a node DOWN and resumes it. Then the same fault strikes a job of slurm_ft that has a spare node. The
program needs root and Slurm's daemons.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.events import commits, training_together
from tests.extended.slurm.hosts import SlurmHosts, missing, slurm_hosts
from tests.extended.slurm.test_slurm_ft import TORCHX
from tests.journeys.jobs import SMALL, Events
from torchft_x import env
from torchft_x.observe.processes import job_processes

ROOT = Path(__file__).resolve().parents[2]

PORT = 29510
REPAIR = 15.0  # seconds from DOWN to RESUME
WHOLE = 300.0  # seconds for both groups to train together again
TRAINER = ["benchmarks/trial/ddp.py", "--steps", "1000000", "--pace", "0.1", *SMALL]
BATCH = ROOT / "docs/examples/slurm/replicas.sh"


class Terminal:
    """A user's terminal on the login node. It prints commands and their output with the time since its start."""

    def __init__(self, hosts: SlurmHosts, folder: Path, **environ: str) -> None:
        self.hosts = hosts
        self.folder = folder
        self.run_dir = folder / "run"
        self.events = Events(self.run_dir)
        self.environ = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environ}
        self.began = time.time()

    def since(self) -> str:
        return f"{time.time() - self.began:6.1f} s"

    def run(self, command: str, *, real: str = "", only: str = "") -> None:
        """Run a command, and print it with the lines of its output that contain `only`.

        `real` is the command to run instead of the printed one, where it contains a path of this machine.
        """
        done = self.hosts.try_run("bash", "-c", real or command, cwd=self.folder, env=self.environ, timeout=60)
        output = (done.stdout + done.stderr).replace(str(self.folder), "").rstrip()
        lines = [line.rstrip() for line in output.splitlines() if only in line]
        print(f"[{self.since()}] $ {command}", *lines, sep="\n", flush=True)

    def print_comment(self, text: str) -> None:
        print(f"[{self.since()}] # {text}", flush=True)

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a condition. Raise SystemExit after `seconds`, with the ends of all logs on stderr."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                files = [*self.folder.glob("*.out"), *self.run_dir.glob("slurm/logs/*")]
                print(*(f"--- {f}\n{f.read_text()[-2000:]}" for f in files), file=sys.stderr)
                raise SystemExit(f"no {what} after {seconds:g} s")
            time.sleep(0.1)

    def together(self, since: float = 0.0) -> bool:
        return training_together([e for e in self.events() if float(e["t"]) > since], 2)

    def cost(self, struck: float, group: str) -> None:
        """Print the cost of the fault to the other group, and when both trained together again."""
        other = [e for e in commits(self.events()) if str(e.get("group")) != group and float(e["t"]) > struck - 1.0]
        longest = max(float(b["t"]) - float(a["t"]) for a, b in pairwise(other))
        alone = [e for e in other if float(e["t"]) > struck and e.get("participants") == 1]
        whole = next(float(e["t"]) for e in other if alone and e["t"] > alone[-1]["t"] and e["participants"] == 2)
        self.print_comment(f"the survivor's longest pause: {longest:.2f} s; it has committed {len(alone)} steps alone;")
        self.print_comment(f"both trained together again {whole - struck:.1f} s after DOWN")


def by_hand(folder: Path) -> None:
    with slurm_hosts(folder / "c", 2, stock=True) as hosts:
        train = " ".join(TRAINER).replace("benchmarks/", f"{ROOT}/benchmarks/")
        terminal = Terminal(hosts, folder, RUN=str(folder / "run"))
        terminal.environ["PATH"] = f"{Path(sys.executable).parent}:{hosts.environ['PATH']}"
        shutil.copy(BATCH, folder)
        words = f"--min_replicas 1 --bind 0.0.0.0:{PORT} --quorum_tick_ms 100 --join_timeout_ms 10000".split()
        command = [sys.executable, "-m", "torchft_x", "lighthouse", *words, "--run_dir", str(terminal.run_dir)]
        command += ["--advertise_host", hosts.login]
        with background(command, folder / "lighthouse.out", terminal):
            terminal.print_comment("on the login node")
            print(f"[{terminal.since()}] $ torchft_x lighthouse {' '.join(words)} --run_dir /shared/run &")
            terminal.wait((terminal.run_dir / "lighthouse").exists, 60, "lighthouse")
            batch = "sbatch --array=0-1 replicas.sh"
            terminal.run(f"{batch} {TRAINER[0]} {TRAINER[1]} {TRAINER[2]} ...", real=f"{batch} {train}")
            terminal.wait(terminal.together, WHOLE, "training")
            time.sleep(5.0)
            terminal.run("squeue")
            terminal.run("tail -n 2 lighthouse.out")
            (node,) = hosts.run("squeue", "-h", "-r", "-n", "tft_repl", "-o", "%i %N").splitlines()[:1]
            job, node = node.split()
            struck = time.time()
            terminal.run(
                f'sudo scontrol update NodeName={node} State=DOWN Reason="manual maintenance"', real=_down(node)
            )
            time.sleep(2.0)
            terminal.run("squeue")
            time.sleep(REPAIR - (time.time() - struck))
            terminal.run(
                f"sudo scontrol update NodeName={node} State=RESUME",
                real=f"scontrol update NodeName={node} State=RESUME",
            )
            time.sleep(2.0)
            terminal.run("squeue")
            group = job.partition("_")[2]
            terminal.wait(lambda: "(attempt 1)" in (folder / f"tft-{job}.out").read_text(), WHOLE, "restart")
            terminal.run("squeue")
            terminal.run(f"grep launching tft-{job}.out")
            terminal.wait(lambda: _rejoined(terminal, group, struck), WHOLE, "rejoining")
            time.sleep(2.0)
            terminal.run("tail -n 2 lighthouse.out")
            terminal.cost(struck, group)
            terminal.run("scancel --me")
            terminal.wait(lambda: not hosts.run("squeue", "-h"), 90, "end")


def under_slurm_ft(folder: Path) -> None:
    with slurm_hosts(folder / "c", 4, stock=True) as hosts:
        terminal = Terminal(hosts, folder, **{env.STATE_HOME: str(folder / "state")})
        words = "run -s slurm_ft -cfg exclusive=True components.py:ddp --cpu 1 --memMB 1000"
        options = f"--run_dir {terminal.run_dir} --script {ROOT}/{TRAINER[0]} -- {' '.join(TRAINER[1:])}"
        real = f"{words.replace('components.py', f'{ROOT}/components.py')} {options}"
        torchx = f"{sys.executable} -c {_quoted(TORCHX)}"
        terminal.run(
            f"torchx {words} --run_dir /run --script {' '.join([TRAINER[0], '--', *TRAINER[1:]])}",
            real=f"{torchx} {real}",
            only="slurm_ft://",
        )
        terminal.wait(terminal.together, WHOLE, "training")
        time.sleep(5.0)
        terminal.run("squeue")
        node = hosts.run("squeue", "-h", "-r", "-o", "%j %i %N").splitlines()
        job, host = next(line.split()[1:] for line in node if line.split()[0].endswith("-trainer"))
        group = job.partition("_")[2]
        struck = time.time()
        terminal.run(f'sudo scontrol update NodeName={host} State=DOWN Reason="manual maintenance"', real=_down(host))
        time.sleep(3.0)
        terminal.run("squeue")
        terminal.wait(lambda: _rejoined(terminal, group, struck), WHOLE, "rejoining")
        time.sleep(2.0)
        terminal.run(
            "grep -h slurm-watch /run/slurm/logs/*.slurm.log",
            real=f"grep -h slurm-watch {terminal.run_dir}/slurm/logs/*.slurm.log",
        )
        terminal.cost(struck, group)
        for name in ("status --once", "scale --replicas 1", "status --once", "cancel", "status --once", "report"):
            verb, _, rest = name.partition(" ")
            real = f"{sys.executable} -m torchft_x {verb} {terminal.run_dir} {rest}"
            terminal.run(f"torchft_x {verb} /run {rest}".rstrip(), real=real)


def _rejoined(terminal: Terminal, group: str, since: float) -> bool:
    joined = (e for e in terminal.events() if e.get("event") == "joined" and str(e.get("group")) == group)
    again = min((float(e["t"]) for e in joined if float(e["t"]) > since), default=None)
    return again is not None and terminal.together(again)


def _down(node: str) -> str:
    return f"scontrol update NodeName={node} State=DOWN Reason='manual maintenance'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def background(command: list[str], out: Path, terminal: Terminal) -> Iterator[None]:
    with out.open("wb") as f:
        environ = {**os.environ, **terminal.environ}
        process = subprocess.Popen(
            command, env=environ, cwd=terminal.folder, stdout=f, stderr=f, start_new_session=True
        )
    try:
        yield
    finally:
        for pid in (process.pid, *job_processes(terminal.run_dir)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    if sentence := missing():
        raise SystemExit(sentence)
    for title, transcribe in (("By hand", by_hand), ("Under slurm_ft", under_slurm_ft)):
        if sys.argv[1:] and not title.lower().endswith(sys.argv[1]):
            continue
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            print(f"## {title}\n\n```", flush=True)
            transcribe(folder)
            print(f"```\n\nLoad: {os.getloadavg()[0]:.1f}.\n", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
