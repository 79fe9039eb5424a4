"""A script with a DataLoader's workers, in each way in which it can end: what they hold of the trainer delays nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import running
from tests.process.programs import python
from tests.started import BIN
from torchft_x import LighthouseServer, env
from torchft_x.observe.processes import job_processes
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]
EXTENDED = pytest.mark.extended

SCRIPT = """
import multiprocessing, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
from torchft_x import Checkpoint, DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, defer_compiler_import


class Ones(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return torch.ones(2)


def main(url, method, steps):
    defer_compiler_import()  # half of a start
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = Manager(ProcessGroupGloo(), model.load_state_dict, model.state_dict, min_replica_size=1)
    checkpoint = Checkpoint(manager, url, {"model": model, "sgd": sgd}, every=1_000_000)
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    checkpoint.resume()
    batches = None
    while manager.current_step() < steps and not told:
        optimizer.zero_grad()
        ddp(torch.ones(2, 2) if batches is None else next(batches)).sum().backward()
        optimizer.step()
        checkpoint.step()
        if batches is None:  # when every connection of the trainer is open
            batches = iter(DataLoader(Ones(), batch_size=2, num_workers=2,
                                      multiprocessing_context=method))
        time.sleep(0.02)
    if told:
        manager.shutdown(finished=False)
        checkpoint.leave()
    else:
        checkpoint.finish()
        manager.shutdown()
    serving = [t.name for t in threading.enumerate() if t.name == "torchft_x store"]
    workers = len(multiprocessing.active_children())
    print(f"ENDED step={manager.current_step()} workers={workers} serving={serving}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


HELD = """
from torch.utils.data import DataLoader
from torchft_x.train.loader_workers import spare_loader_workers

spare_loader_workers()
if __name__ == "__main__":
    batches = iter(DataLoader(range(100), num_workers=2, multiprocessing_context={method!r}))
    print(len(next(batches)))
"""


@pytest.mark.parametrize("method", ["fork", *(pytest.param(m, marks=EXTENDED) for m in ("spawn", "forkserver"))])
def test_a_program_that_still_holds_its_loader_ends(method: str, tmp_path: Path) -> None:
    """Python ends the workers by a signal then, and waits for them."""
    script = tmp_path / "script.py"
    script.write_text(HELD.format(method=method))
    python(script)


@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("fork", "drain"),
        ("spawn", "SIGTERM to all"),
        pytest.param("fork", "done", marks=EXTENDED),
        pytest.param("spawn", "SIGTERM", marks=EXTENDED),
        pytest.param("forkserver", "drain", marks=EXTENDED),
        pytest.param("forkserver", "SIGTERM to all", marks=EXTENDED),
    ],
)
def test_the_last_step_is_saved_while_the_loader_has_workers(method: str, end: str, tmp_path: Path) -> None:
    run_dir, url, script = tmp_path / "run", str(tmp_path / "saved"), tmp_path / "script.py"
    script.write_text(SCRIPT)
    steps = "8" if end == "done" else "1000000"
    command = [str(BIN / "python"), "-m", "torchft_x", "supervise", "--group", "0", "--groups", "1"]
    command += ["--run_dir", str(run_dir), "--", str(script), url, method, steps]
    token = env.new_token()
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, token=token)
    variables = {env.RUN_DIR: str(run_dir), env.LIGHTHOUSE: lighthouse.address(), env.TOKEN: token}
    variables |= {env.WARM: "0", env.MEMORY: "0"}
    try:
        with running(command, tmp_path / "log", run_dir, **variables) as job:
            if end != "done":
                job.wait_for(lambda: len(commits(job.events())) > 8, 60, "steps with batches of the loader")
            if end == "drain":
                python("-m", "torchft_x", "drain", "0", lighthouse.address(), **{env.TOKEN: token})
                job.wait_for(lambda: "rests" in job.output(), 60, "the drained group rests")
                os.kill(job.process.pid, signal.SIGTERM)
            elif end == "SIGTERM to all":
                for pid in sorted(job_processes(run_dir), reverse=True):  # the workers first
                    os.kill(pid, signal.SIGTERM)
            elif end != "done":
                os.kill(job.process.pid, signal.Signals[end])
            code = job.wait(60)
            said = job.output()
    finally:
        lighthouse.shutdown()
    ended = re.search(r"ENDED step=(\d+) workers=(\d) serving=(\S+)", said)
    assert ended is not None, said  # its supervisor has not killed it
    assert (ended[2], ended[3]) == ("2", "[]"), said
    assert (code == 0) is (end == "done"), said
    found = newest(Store(url))
    assert found is not None, said
    assert found.step == int(ended[1]), said
