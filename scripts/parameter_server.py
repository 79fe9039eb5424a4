#!/usr/bin/env python
"""Asynchronous training with a parameter server: workers come and go, and nobody waits for anybody.

    python scripts/parameter_server.py serve --port 29700
    python scripts/parameter_server.py work http://HOST:29700/new_session --steps 200      # any number, at any time

Each worker requests a session. In it the worker repeatedly receives the newest parameters and sends a gradient for
them, which the server applies at once. A worker that dies has no effect on the others. With TORCHFT_X_TOKEN set on both
sides, only workers with the token can train.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import warnings

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parameters_to_vector, vector_to_parameters  # noqa: E402

from torchft_x import ParameterServer, ProcessGroupGloo  # noqa: E402
from torchft_x.comm import ProcessGroup  # noqa: E402

TIMEOUT = 30.0  # seconds a worker may take for a gradient, and the server for the parameters


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


class Server(ParameterServer):
    """Parameter server that applies each gradient with plain SGD."""

    def __init__(self, port: int, lr: float) -> None:
        self.weights = parameters_to_vector(make_model().parameters()).detach()
        self.lr = lr
        self.updates = 0  # gradients applied so far, of all workers
        self.lock = threading.Lock()  # guards the weights: sessions are threads
        super().__init__(port)

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        return ProcessGroupGloo(timeout=TIMEOUT)

    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        """Serve one worker until it goes away: the current collective then raises, which ends the session."""
        grad = torch.empty_like(self.weights)
        while True:
            with self.lock:
                now = self.weights.clone()
            pg.broadcast_one(now, root=0).wait()
            pg.recv([grad], 1).wait()
            with self.lock:
                self.weights -= self.lr * grad
                self.updates += 1
                if self.updates % 100 == 0:
                    print(f"{self.updates} updates, {self.num_sessions()} workers", flush=True)


def work(address: str, steps: int, seed: int) -> None:
    """Train as one worker, in a session with the server at `address`."""
    model = make_model()
    data = torch.Generator().manual_seed(seed)  # each worker has data of its own
    weights = parameters_to_vector(model.parameters()).detach()
    pg = Server.new_session(address)
    for step in range(steps):
        pg.broadcast_one(weights, root=0).wait()
        vector_to_parameters(weights, model.parameters())
        x = torch.randn(64, 8, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True).tanh()).square().mean()
        model.zero_grad()
        loss.backward()
        pg.send([torch.cat([p.grad.view(-1) for p in model.parameters()])], 0).wait()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} | loss {loss.item():.4f}", flush=True)
    pg.shutdown()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="role", required=True)
    serve = sub.add_parser("serve")
    serve.add_argument("--port", type=int, default=29700)
    serve.add_argument("--lr", type=float, default=0.05)
    worker = sub.add_parser("work")
    worker.add_argument("address", help="what the server prints")
    worker.add_argument("--steps", type=int, default=200)
    worker.add_argument("--seed", type=int, default=os.getpid())
    args = p.parse_args()
    torch.set_num_threads(1)
    if args.role == "work":
        work(args.address, args.steps, args.seed)
        return
    server = Server(args.port, args.lr)
    print(server.address(), flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()


if __name__ == "__main__":
    main()
