"""Cost of a durable save to the training meanwhile: steps during a save against steps before it, in one process.

    python -m benchmarks.evidence.bench_checkpoint --gb 1 --threads 2 --rounds 5 --url /tmp/bench-checkpoint

The state is ballast; a step is matrix products of a fixed size on the CPU. The copy of the state into memory, for which
training stands still, counts as part of the steps. The program prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402

from torchft_x import Checkpoint, LighthouseServer, Manager, ProcessGroupGloo, observe  # noqa: E402


class Ballast:
    """A state of some GB in tensors of 16 MiB."""

    def __init__(self, gb: float) -> None:
        self.tensors = [torch.randn(4 << 20) for _ in range(max(1, int(gb * 1e9 / (16 << 20))))]

    def state_dict(self) -> dict:
        return dict(enumerate(self.tensors))

    def load_state_dict(self, state: dict) -> None:
        self.tensors = list(state.values())


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--gb", type=float, default=1.0)
    p.add_argument("--threads", type=int, default=1, help="compute threads of the training")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--every", type=int, default=150, help="steps between two saves; more than one save takes")
    p.add_argument("--url", required=True, help="an empty folder, removed by you")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    saved: list[dict] = []
    observe.subscribe(lambda event: saved.append(event) if event["event"] == "checkpoint" else None)
    lighthouse = LighthouseServer("127.0.0.1:0", 1)
    manager = Manager(
        pg=ProcessGroupGloo(), load_state_dict=lambda state: None, state_dict=dict, min_replica_size=1,
        lighthouse_addr=lighthouse.address(), replica_id="bench", rank=0, world_size=1,
    )  # fmt: skip
    checkpoint = Checkpoint(manager, args.url, {"ballast": Ballast(args.gb)}, every=args.every)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def step() -> float:
        began = time.monotonic()
        manager.start_quorum()
        for _ in range(4):
            torch.mm(a, b)
        manager.should_commit()
        checkpoint.step()
        return time.monotonic() - began

    rounds: list[dict] = []
    while len(rounds) <= args.rounds:  # the first round doesn't count: it touches new memory
        alone: list[float] = []
        while (manager.current_step() + 1) % args.every:  # steps without a save, before the one that begins it
            alone.append(step())
        known, beside = len(saved), [step()]
        stall = beside[0] - statistics.median(alone)
        while len(saved) == known:
            beside.append(step())
        usual = statistics.mean(alone)
        rounds.append({
            "cost": statistics.mean(beside) / usual - 1, "lost": sum(beside) - usual * len(beside),
            "seconds": saved[-1]["duration"], "stall": stall, "step": usual,
        })  # fmt: skip
    checkpoint.close()
    manager.shutdown()
    lighthouse.shutdown()
    counted = {name: [round(r[name], 4) for r in rounds[1:]] for name in rounds[0]}
    medians = {name: statistics.median(values) for name, values in counted.items()}
    print(json.dumps({"gb": args.gb, "threads": args.threads, "median": medians, "first": rounds[0], "all": counted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
