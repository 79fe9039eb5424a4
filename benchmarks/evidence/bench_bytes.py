#!/usr/bin/env python
"""Costs and savings of DiLoCo's quantised exchanges between two groups. Needs root, iproute2 and tc.

    python -m benchmarks.evidence.bench_bytes --json bytes.json

The groups are network namespaces joined by a veth. The program measures

* the bytes of an outer sync on the wire (headers, quorums and votes included), against averaging each step;
* the time of a sync at 100 Mbit/s, and the share of it that streaming hides;
* the loss of a small language model after the same exchanges.

Times are compared within one run, whose rounds take every format in turn. The table shows the median of the rounds'
ratios, and an interval that holds the true median with 96 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
warnings.filterwarnings("ignore", message=".*NumPy.*")

import byte_model  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from tests.scenario import networks  # noqa: E402
from tests.scenario.cable import SIDES, Pair  # noqa: E402
from torchft_x import DiLoCo, DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402
from torchft_x.launch.process.environment import ALLOCATOR  # noqa: E402  # as a supervisor sets it for its trainers
from torchft_x.rpc.coordination import LighthouseServer  # noqa: E402

WAYS = ("fp32", "int8", "int4")
H = 100  # inner steps between two syncs in the comparison with per-step averaging
LAYERS, WIDTH = 6, 2048  # square layers: 25 million values, 101 MB
MBITS = 100
ROUNDS = 9  # rounds at that rate: of 9, the second least and the second greatest bound the median with 96 %
STREAMED = 8  # inner steps of delay
TEXT = {"sync_every": 20, "exchanges": 15, "seeds": 3}

# --- one group --------------------------------------------------------------------------------------------------------


class Member:
    """One of the two groups. Both go through all runs in the same order."""

    def __init__(self, side: str, addresses: dict[str, str]) -> None:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # each run ends with warnings, as one of the two is lost
        self.side, self.addresses = side, addresses
        self.group = SIDES.index(side)
        self.runs = 0

    def manager(self, **kwargs: Any) -> Manager:
        """Return the Manager of a new job, with a lighthouse of its own on the left side."""
        self.runs += 1
        here, port = self.addresses[self.side], 29700 + self.runs
        first = self.addresses["left"]
        self.lighthouse = LighthouseServer(f"{first}:{port}", 2, 60000) if self.group == 0 else None
        return Manager(
            pg=ProcessGroupGloo(120.0, host=here), min_replica_size=2, timeout=120.0, quorum_timeout=120.0,
            connect_timeout=60.0, rank=0, world_size=1, store_addr=here, store_port=0, hostname=here,
            lighthouse_addr=f"http://{first}:{port}", replica_id=f"group_{self.group}", **kwargs,
        )  # fmt: skip

    def close(self, manager: Manager) -> None:
        manager.shutdown()
        if self.lighthouse is not None:
            self.lighthouse.shutdown()

    def diloco(self, net: nn.Module, inner: torch.optim.Optimizer, way: str, **kwargs: Any) -> tuple[Manager, DiLoCo]:
        manager = self.manager(
            load_state_dict=inner.load_state_dict, state_dict=inner.state_dict, use_async_quorum=False
        )
        outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True, fused=True)
        return manager, DiLoCo(manager, [net], inner, outer, should_quantize=way != "fp32" and way, **kwargs)

    def rounds(
        self, number: int, *, delay: int = 0, pause: dict[str, float] | None = None
    ) -> dict[str, list[dict[str, float]]]:
        """Return the results of `Session.round` by format, without the own time of the inner steps.

        The three jobs live side by side, and each round takes one exchange of each, so that other work on the machine
        hits all alike. `pause` holds the seconds before each inner step, by format.
        """
        with contextlib.ExitStack() as stack:
            sessions = {
                way: stack.enter_context(Session(self, way, delay=delay, pause=(pause or {}).get(way, 0.0)))
                for way in WAYS
            }
            for session in sessions.values():
                session.round()  # warms up
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(number):
                for way, session in sessions.items():
                    found[way].append(session.round())
            for results in found.values():
                own = statistics.median(r.pop("plain") for r in results)
                for result in results:
                    result["seconds"] -= own * (delay + 2)
            return found

    def per_step(self, steps: int = 5) -> dict[str, float]:
        """Return the median bytes on the wire of a step whose gradients are averaged."""
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        manager = self.manager(load_state_dict=net.load_state_dict, state_dict=net.state_dict)
        whole, optim = DistributedDataParallel(manager, net), Optimizer(manager, optimizer)
        found = []
        for _ in range(steps + 1):
            before = on_the_wire()
            optim.zero_grad()
            whole(torch.ones(1, WIDTH)).sum().backward()
            optim.step()
            found.append(on_the_wire() - before)
        self.close(manager)
        return {"bytes": statistics.median(found[1:])}

    def text(self, way: str, seed: int) -> dict[str, float]:
        """Return the loss of the global weights after the last exchange, on text that no group has trained on."""
        args = byte_model.parse_args(
            ["--layers", "2", "--width", "64", "--seq-len", "64", "--seed", str(seed), "--data-mb", "2"]
        )
        data = byte_model.load_data(args)
        cut = len(data) * 9 // 10
        args.steps = TEXT["sync_every"] * TEXT["exchanges"]
        torch.manual_seed(seed)
        net = byte_model.Transformer(args)
        inner = byte_model.make_optimizer(args, net)
        manager, loop = self.diloco(net, inner, way, sync_every=TEXT["sync_every"])
        with loop:
            while loop.exchanges < TEXT["exchanges"]:
                byte_model.set_learning_rate(args, inner, loop.progress)
                inner.zero_grad()
                net(*byte_model.get_batch(data[:cut], args, loop.progress, f"{self.group}.0")).backward()
                inner.step()
        self.close(manager)
        args.batch_size = 256
        with torch.no_grad():
            return {"loss": float(net(*byte_model.get_batch(data[cut:], args, 0, "held out")))}

    def all(self, out: str, *, text: bool) -> None:
        """Do all runs, and write the results of group 0 as JSON to `out`."""
        found: dict[str, Any] = {}

        def record(name: str, result: dict[str, float]) -> None:
            found.setdefault(name, []).append(result)
            if self.group == 0:
                print(f"{name}: { ({k: round(v, 4) for k, v in result.items()}) }", file=sys.stderr, flush=True)

        def record_rounds(kind: str, results: dict[str, list[dict[str, float]]]) -> None:
            for way in WAYS:
                for result in results[way]:
                    record(f"{kind} {way}", result)

        record("per step", self.per_step())
        record_rounds("free", self.rounds(4))
        limit(MBITS)
        record("load", {"before": os.getloadavg()[0]})
        record_rounds("slow", self.rounds(ROUNDS))
        record("load", {"after": os.getloadavg()[0]})
        takes = {way: statistics.median(r["seconds"] for r in found[f"slow {way}"]) for way in WAYS}
        pause = {way: 2.0 * takes[way] / STREAMED for way in WAYS}
        record_rounds("streamed", self.rounds(3, delay=STREAMED, pause=pause))
        limit(None)
        for seed in range(TEXT["seeds"] if text else 0):
            for way in WAYS:
                record(f"text {way}", self.text(way, seed))
        if self.group == 0:
            Path(out).write_text(json.dumps(found))


class Session:
    """A job of two groups that exchange in one format, a round at a time, as a context manager."""

    def __init__(self, member: Member, way: str, *, delay: int, pause: float) -> None:
        self.member, self.delay, self.pause = member, delay, pause
        net = model()
        self.inner = torch.optim.SGD(net.parameters(), lr=0.01)
        self.manager, self.loop = member.diloco(net, self.inner, way, sync_every=delay + 2, fragment_sync_delay=delay)
        self.lighthouse = member.lighthouse
        generator = torch.Generator().manual_seed(member.group)
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator)

    def __enter__(self) -> Session:
        self.loop.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.loop.__exit__(None, None, None)
        self.member.lighthouse = self.lighthouse
        self.member.close(self.manager)

    def round(self) -> dict[str, float]:
        """Run the inner steps of one exchange, and return their costs.

        `seconds` is the time of all inner steps, and `plain` that of the first, which exchanges nothing. `cpu` is this
        group's processor time, with the kernel's network work only as far as the process is charged for it. `bytes` are
        those on the wire in both directions.
        """
        bytes_, cpu, steps = on_the_wire(), time.process_time(), []
        for _ in range(self.delay + 2):
            time.sleep(self.pause)
            began = time.monotonic()
            self.inner.step()
            steps.append(time.monotonic() - began)
        return {
            "seconds": sum(steps),
            "plain": steps[0],
            "cpu": time.process_time() - cpu,
            "bytes": on_the_wire() - bytes_,
        }


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def on_the_wire() -> int:
    """Return the bytes that this namespace has sent and received so far."""
    folder = Path("/sys/class/net/eth0/statistics")
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def limit(mbits: int | None) -> None:
    """Limit what this namespace sends to `mbits` Mbit/s, or lift the limit (None)."""
    if mbits is None:
        subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
    else:
        how = ["tbf", "rate", f"{mbits}mbit", "burst", "64kb", "latency", "400ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", "eth0", "root", *how], check=True)


# --- both groups ------------------------------------------------------------------------------------------------------


def table(found: dict[str, list[dict[str, float]]]) -> tuple[list[dict[str, Any]], list[float]]:
    """Return a row per format, and the load averages."""

    def of(name: str, what: str) -> float:
        return statistics.median(r[what] for r in found[name])

    rows = []
    for way in WAYS:
        transfer = of(f"free {way}", "bytes") / 2 * 8 / (MBITS * 1e6)  # seconds: half of the bytes go in each direction
        pairs = zip(found["slow fp32"], found[f"slow {way}"], strict=True)
        ratios = sorted(a["seconds"] / b["seconds"] for a, b in pairs)
        best = {w: min(r["seconds"] for r in found[f"slow {w}"]) for w in ("fp32", way)}
        ratio_of_best = best["fp32"] / best[way]
        row: dict[str, Any] = {
            "way": way,
            "bytes": of(f"free {way}", "bytes"),
            "of fp32": of(f"free {way}", "bytes") / of("free fp32", "bytes"),
            "less than per-step DDP": H * of("per step", "bytes") / of(f"free {way}", "bytes"),
            "seconds": of(f"slow {way}", "seconds"),
            "cpu": of(f"slow {way}", "cpu"),
            "faster": statistics.median(ratios),
            "interval": [ratios[1], ratios[-2]],
            "faster, best rounds": ratio_of_best,
            "streamed": of(f"streamed {way}", "seconds"),
            # One minus the time that the slow link adds to a streamed sync, over the least time of the transfer.
            "hidden": 1 - max(0.0, of(f"streamed {way}", "seconds") - of(f"free {way}", "seconds")) / transfer,
        }
        if f"text {way}" in found:
            losses = [r["loss"] for r in found[f"text {way}"]]
            row["loss"] = statistics.mean(losses)
            row["loss, of fp32"] = [a / b["loss"] for a, b in zip(losses, found["text fp32"], strict=True)]
        rows.append(row)
    return rows, list(os.getloadavg())


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| | bytes of a sync | of fp32 | less than per-step DDP, H = 100 | seconds at 100 Mbit/s | of the processor | faster (interval; best rounds) | streamed | transfer hidden | loss | of fp32, by seed |"
    )
    print("|---" * 11 + "|")
    for r in rows:
        seeds = ", ".join(f"{x:.4f}" for x in r.get("loss, of fp32", []))
        print(
            f"| {r['way']} | {r['bytes'] / 2e6:.2f} MB | {r['of fp32']:.4f} | {r['less than per-step DDP']:.0f} x | {r['seconds']:.2f} "
            f"| {r['cpu']:.2f} | {r['faster']:.2f} x ({r['interval'][0]:.2f} to {r['interval'][1]:.2f}; {r['faster, best rounds']:.2f}) | {r['streamed']:.2f} | {r['hidden']:.0%} | {r.get('loss', float('nan')):.4f} | {seeds} |"
        )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", default="bytes.json", metavar="FILE", help="where the numbers go")
    p.add_argument("--no-text", action="store_true", help="leave the losses out")
    p.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    p.add_argument("--addresses", type=json.loads, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.side:
        Member(args.side, args.addresses).all(args.json, text=not args.no_text)
        return
    if networks.missing():
        sys.exit(networks.missing())
    with Pair("4") as pair:
        addresses = ["--addresses", json.dumps({side: pair.address(side, "4") for side in SIDES})]
        environ = {**os.environ, **ALLOCATOR}
        members = [
            subprocess.Popen(
                [
                    *pair.command(side),
                    sys.executable,
                    "-m",
                    "benchmarks.evidence.bench_bytes",
                    *sys.argv[1:],
                    "--side",
                    side,
                    *addresses,
                ],
                env=environ,
            )
            for side in SIDES
        ]
        codes = [member.wait() for member in members]
    if any(codes):
        sys.exit(f"the members ended with {codes}; what they said is above.")
    found = json.loads(Path(args.json).read_text())
    rows, load = table(found)
    Path(args.json).write_text(
        json.dumps(
            {"rows": rows, "runs": found, "load": load, "values": LAYERS * WIDTH**2, "mbits": MBITS, **TEXT}, indent=1
        )
    )
    show(rows)
    slow = [next(iter(r.values())) for r in found["load"]]
    print(
        f"\nload {slow[0]:.1f} to {slow[1]:.1f} while links were slow, {load[0]:.1f} at the end, {os.cpu_count()} cores, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
