"""`./scripts/gpu_check`: run each check of torchft_x that needs a card in a process of its own, into one JSON file.

    ./scripts/gpu_check                       # on the first CUDA (XPU) device; without one, its code on the CPU
    ./scripts/gpu_check --only nccl_of_one,kill_and_rejoin --out result.json
    ./scripts/gpu_check --dry                 # what would run, and what is missing for it here

The exit code is 0 if nothing failed, 1 otherwise. A check that crashes, hangs or is out of memory doesn't end the
others. All together end within nine minutes: checks for which no time is left are skipped. (TORCHFT_X_TIME_SCALE
stretches all limits, for a busy machine.)
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.util import clock

ROOT = Path(__file__).parents[3]
BUDGET = 525.0  # seconds for all checks together
_TEXT = 4000  # number of characters kept of a reason, and of a check's output


@dataclass(frozen=True)
class Check:
    name: str
    module: str
    seconds: float
    """Time limit in seconds."""
    cuda: str = ""
    """Part of the check that needs CUDA itself; empty: any accelerator suffices."""
    modules: tuple[str, ...] = ()
    """Packages that it needs in addition to torchft_x's own."""
    on_cpu: bool = True
    """Whether a run of its code on the CPU is meaningful."""


CHECKS = (
    Check("nccl_of_one", "groups", 60, "NCCL"),
    Check("nccl_abort_and_rebuild", "groups", 90, "NCCL"),
    Check("nccl_in_a_child", "groups", 90, "CUDA's IPC handles"),
    Check("gloo_on_the_device", "groups", 60),
    Check("quantised_kernels", "state", 60),
    Check("quantised_reductions", "state", 60),
    Check("staging", "state", 60),
    Check("step_against_plain_ddp", "training", 90, "NCCL"),
    Check("compiled", "training", 120),
    Check("fsdp2", "training", 90),
    Check("fsdp2_with_offload", "training", 90),
    Check("kill_and_rejoin", "jobs", 180),
    Check("hsdp_script", "jobs", 120),
    Check("diloco_script", "jobs", 120),
    Check("gpu_tests", "jobs", 150, "NCCL", ("pytest", "pytest_timeout", "hypothesis"), on_cpu=False),
)


@dataclass(frozen=True)
class Result:
    name: str
    status: str
    """One of passed, failed and skipped."""
    reason: str
    seconds: float
    figures: dict[str, Any]
    not_tried: str
    """Part of the check that this machine can't run."""


def missing(check: Check, kind: str) -> str:
    """Return the part of the check that can't run on this kind of device, or '' if there is none."""
    lacking = [m for m in check.modules if importlib.util.find_spec(m) is None]
    if lacking:
        return f"the package {' and '.join(lacking)} is not installed"
    if kind == "cpu":
        return f"no accelerator is here: {check.cuda or 'what depends on a device'} was not tried"
    return f"{check.cuda} is not tried on {kind}" if check.cuda and kind != "cuda" else ""


def can_run(check: Check, kind: str) -> bool:
    """Return whether any part of the check can run."""
    if any(importlib.util.find_spec(m) is None for m in check.modules):
        return False
    return check.on_cpu if kind == "cpu" else not check.cuda or kind == "cuda"


def run_all(checks: Sequence[Check], kind: str) -> list[Result]:
    """Run the checks one after the other, and print a line as each ends."""
    deadline = time.monotonic() + clock(BUDGET)
    results = []
    for check in checks:
        left = deadline - time.monotonic()
        if not can_run(check, kind):
            result = Result(check.name, "skipped", missing(check, kind), 0.0, {}, missing(check, kind))
        elif left < clock(15):
            result = Result(check.name, "skipped", f"no time was left of {BUDGET:g} s", 0.0, {}, "everything")
        else:
            result = run_one(check, kind, min(clock(check.seconds), left))
        results.append(result)
        first = (result.reason.strip().splitlines() or [""])[0][:160]
        print(f"{result.status:<8} {result.name:<24} {result.seconds:6.1f} s  {first}", flush=True)
    return results


def run_one(check: Check, kind: str, seconds: float) -> Result:
    """Run a check in a process of its own, and end all processes that it starts."""
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
        out, log = Path(folder, "result.json"), Path(folder, "log")
        words = [sys.executable, "-m", "tests.extended.gpu.run", "--check", f"{check.module}:{check.name}"]
        words += ["--device", kind, "--out", str(out)]
        began = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            reason = _await(process, seconds)
        took = round(time.monotonic() - began, 2)
        printed = log.read_text(errors="replace")[-_TEXT:]
        try:
            said = json.loads(out.read_text())
        except (OSError, ValueError):
            said = {"status": "failed", "reason": reason or _ending(process.returncode), "figures": {}}
        if reason or said["status"] == "failed":
            said |= {"status": "failed", "reason": f"{reason or said['reason']}\n{printed}".strip()}
    return Result(check.name, said["status"], said["reason"], took, said["figures"], missing(check, kind))


def _await(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for the process, and kill all of its session. Return why it was killed, or '' if it ended by itself."""
    reason = ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        reason = f"it had not ended after {seconds:.0f} s"
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints the stacks
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    return reason


def _ending(code: int) -> str:
    return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


def run_here(name: str, kind: str, out: Path) -> int:
    """Run one check, MODULE:FUNCTION, in this process."""
    import faulthandler

    import torch

    from tests.extended.gpu.kit import Kit

    faulthandler.enable()
    module, _, function = name.partition(":")
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, 0)
    if kind != "cpu":
        torch.get_device_module(kind).set_device(device)
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
        kit = Kit(device, Path(folder))
        status, reason = "passed", ""
        try:
            getattr(importlib.import_module(f"tests.extended.gpu.{module}"), function)(kit)
        except BaseException as e:
            status, reason = "failed", f"{type(e).__name__}: {e}"
            traceback.print_exc()
    out.write_text(json.dumps({"status": status, "reason": reason, "figures": kit.figures}))
    sys.stdout.flush()
    os._exit(0)  # threads of aborted libraries must not delay the next check


def machine(kind: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(), "system": platform.platform(), "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__, "cuda": torch.version.cuda, "device": kind,
    }  # fmt: skip
    if kind != "cpu":
        module = torch.get_device_module(kind)
        found |= {"name": module.get_device_name(0), "devices": module.device_count()}
    if kind == "cuda":
        found |= {"nccl": list(torch.cuda.nccl.version()), "capability": list(torch.cuda.get_device_capability(0))}
    return found


def best_device() -> str:
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found is not None and found.type in ("cuda", "xpu") else "cpu"


def main(argv: list[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "xpu", "cpu"))
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--dry", action="store_true", help="only say what would run")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.check:
        return run_here(args.check, args.device, args.out)
    wanted = [name for name in args.only.split(",") if name]
    unknown = sorted(set(wanted) - {c.name for c in CHECKS})
    if unknown:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(c.name for c in CHECKS)}")
    checks = [c for c in CHECKS if not wanted or c.name in wanted]
    kind = best_device() if args.device == "auto" else args.device
    if args.dry:
        for c in checks:
            print(f"{'runs' if can_run(c, kind) else 'skipped':<8} {c.name:<24} {missing(c, kind)}".rstrip())
        return 0
    began, about = time.monotonic(), machine(kind)
    print(f"{len(checks)} checks on {about.get('name', 'the CPU')}, torch {about['torch']}", flush=True)
    results = run_all(checks, kind)
    return report(results, about, time.monotonic() - began, args.out)


def report(results: Sequence[Result], about: dict[str, Any], seconds: float, out: Path) -> int:
    """Write the JSON file, print a summary, and return the exit code."""
    counts = {s: sum(r.status == s for r in results) for s in ("passed", "failed", "skipped")}
    whole = {"machine": about, **counts, "seconds": round(seconds, 1), "checks": [vars(r) for r in results]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{', '.join(f'{n} {s}' for s, n in counts.items())} in {seconds:.0f} s; {out}")
    if about["device"] == "cpu":
        print("No accelerator was used: this shows that the checks themselves run, and nothing about a GPU.")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
