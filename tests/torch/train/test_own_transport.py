"""Transports and process groups of users of the peer, for its interfaces, in a heal."""

from __future__ import annotations

import copy
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.comm.accelerator.test_from_factory import Own
from tests.torch.train import jobs
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, same
from tests.torch.train.test_newcomers import together
from torchft_x.observe.events import read_events
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.torchft_transports import AdaptedTransport, adapted


class Shelf:
    """Hands out the very state dict until it is told not to; knows states by their step."""

    shelves: dict[str, Shelf] = {}  # by metadata

    def __init__(self, name: str) -> None:
        self.shelves[name] = self
        self.name = name
        self.there = threading.Condition()
        self.state: tuple[int, Any] | None = None
        self.shut: list[bool] = []  # arguments of `shutdown`

    def metadata(self) -> str:
        return self.name

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        assert isinstance(timeout, timedelta)
        with self.there:
            self.state = (step, state_dict)
            self.there.notify_all()

    def disallow_checkpoint(self) -> None:
        with self.there:
            self.state = None

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        source = self.shelves[metadata]
        with source.there:
            came = source.there.wait_for(
                lambda: source.state is not None and source.state[0] == step, timeout.total_seconds()
            )
            assert came, f"no state of step {step}"
            assert source.state is not None
            return copy.deepcopy(source.state[1])

    def shutdown(self, wait: bool = True) -> None:
        self.shut.append(wait)


class NarrowShelf(Shelf):
    """Carries what the peer's Manager has in its state, and nothing else."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        state = super().recv_checkpoint(src_rank, metadata, step, timeout)
        known = {key: state["torchft"][key] for key in ("step", "batches_committed")}
        return {"user": state["user"], "torchft": known}


@pytest.mark.parametrize("shelf", [Shelf, NarrowShelf])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_transport_with_the_peers_interface_heals(
    run_dir: Path, asynchronous: bool, shelf: type[Shelf], address: str
) -> None:

    def trainer(g: int) -> Trainer:
        transport: Any = shelf(f"{g}")
        return Trainer(g, address, checkpoint_transport=transport, use_async_quorum=asynchronous)

    a, b = trainer(0).run_to(3), trainer(1)
    last = together([a, b])
    assert same(a.history[last], b.history[last])
    leave(a, b)
    heals = [e for e in read_events(run_dir) if e["event"] == "heal_end"]
    assert [e["group"] for e in heals] == ["group_1"]
    assert all(Shelf.shelves[n].shut == [True] for n in "01")


def test_groups_train_with_a_process_group_that_creates_its_own(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The one that stays is released from the collective, and goes on."""
    monkeypatch.setattr(jobs, "ProcessGroupGloo", lambda *_, **__: Own())
    a, b = run_threads(2, lambda g: Trainer(g, address))
    run_threads(2, lambda g: (a, b)[g].run_to(4))
    assert a.pg.created[-1][1] == 2  # type: ignore[attr-defined]
    assert all(same(a.history[s], b.history[s]) for s in range(1, 5))
    b.manager.shutdown()
    a.run_to(7)


def test_nobody_reads_the_state_while_it_changes() -> None:
    shelf = Shelf("x")
    transport = adapted(shelf)
    assert isinstance(transport, AdaptedTransport)
    transport.send_checkpoint([1], 3, {"w": torch.ones(2)}, 5.0)
    assert shelf.state is not None
    transport.before_commit()
    assert shelf.state is None


def test_what_can_be_told_more_is_used_as_it_is() -> None:
    ours: Any = HTTPTransport(1.0, host="127.0.0.1")
    assert adapted(ours) is ours
    ours.shutdown()
