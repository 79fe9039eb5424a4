"""Training script of the real groups of a scenario: a tiny model, whose parameters are dumped after every commit.

It trains until SIGTERM, and then leaves at the next boundary.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks.trial.dump import Dumper  # noqa: E402
from tests.journeys.plain_sgd import PlainSGD  # noqa: E402
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, env, observe  # noqa: E402

BALLAST = 16  # megabytes of additional state that a heal must copy
PACE = 0.03  # seconds that a step takes, on average
leaving = False
committed_in = 0


def on_term(number: int, frame: object) -> None:
    global leaving
    leaving = True


def on_event(event: dict) -> None:
    global committed_in
    if event["event"] == "commit":
        committed_in = event["quorum"]


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--dump-params", required=True)
    args = p.parse_args()
    group, rank = env.read(env.REPLICA_GROUP_ID, "0"), env.read_int(env.RANK, 0)
    torch.set_num_threads(1)
    torch.manual_seed(sum(group.encode()))  # different seeds: the first quorum must make the parameters equal
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    sgd = PlainSGD(model.parameters(), lr=0.01, momentum=0.9)
    state = {"ballast": torch.zeros(BALLAST << 18), "healed": False}

    def load(new: dict) -> None:
        model.load_state_dict(new["model"])
        sgd.load_state_dict(new["optim"])
        state["healed"] = True

    manager = Manager(
        pg=ProcessGroupGloo(timeout=env.read_seconds(env.TIMEOUT, 60.0)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optim": sgd.state_dict(), "ballast": state["ballast"]},
        min_replica_size=1,
        replica_id=group,
    )
    observe.subscribe(on_event)
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    dumper = Dumper(args.dump_params, model.parameters(), group, rank, env.read_attempt().number)
    rng = random.Random(group)
    while not leaving:
        optimizer.zero_grad()
        time.sleep(rng.uniform(0.5, 1.5) * PACE)  # in each reduction some group waits for another
        step, participant = manager.current_step(), manager.participating_rank() or 0
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + participant))
        ddp(x).square().mean().backward()
        optimizer.step()
        if optimizer.committed:
            dumper.write(manager.current_step(), t=time.time(), committed_in=committed_in, healed=state["healed"])
            state["healed"] = False
    manager.shutdown()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_term)
    main()
