"""What is more than another name: against real lighthouses, threads and processes."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.futures import Future
from torchft_x.compat.checkpointing.http_transport import HTTPTransport
from torchft_x.compat.checkpointing.pg_transport import PGTransport

from tests.torch.train import apart
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, lighthouse
from tests.util import scaled
from torchft_x import env
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.compat import futures, local_sgd, manager
from torchft_x.compat.adapters.rwlock import RWLock
from torchft_x.errors import TransferError
from torchft_x.train.elastic.sampler import ElasticSampler

STATE = {"weights": torch.arange(6.0), "step": 3}


def make_manager(address: str, **arguments: Any) -> Any:
    return manager.Manager(
        ProcessGroupGloo(scaled(20.0), host=HOST), None, None, 1, lighthouse_addr=address, replica_id="a", rank=0,
        world_size=1, store_addr=HOST, store_port=0, hostname=HOST, **arguments,
    )  # fmt: skip


def test_torchfts_variables_beat_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TIMEOUT", "71"), ("QUORUM_TIMEOUT", "72"), ("CONNECT_TIMEOUT", "73")):
        monkeypatch.setenv(f"TORCHFT_{name}_SEC", value)
    with lighthouse() as address:
        made = make_manager(
            address, timeout=timedelta(seconds=9), quorum_timeout=timedelta(seconds=9), connect_timeout=9.0
        )
        options = made.context.options
        assert (options.timeout, options.quorum_timeout, options.connect_timeout) == (71.0, 72.0, 73.0)
        made.shutdown()
        for name in (env.TIMEOUT, env.QUORUM_TIMEOUT, env.CONNECT_TIMEOUT):
            monkeypatch.delenv(name)
        made = make_manager(address, timeout=timedelta(seconds=9))
        assert made.context.options.timeout == 9.0
        assert made.state_dict() == {"step": 0, "batches_committed": 0}
        made.register_state_dict_fn("more", lambda state: None, lambda: {"a": 1})
        assert made._manager_state_dict() == {"user": {"more": {"a": 1}}, "torchft": made.state_dict()}
        made.load_state_dict({"step": 7, "batches_committed": 14})
        assert (made.current_step(), made.batches_committed()) == (7, 14)
        data = ElasticSampler(made, 30, global_batch=4, micro_batch=2)  # torchft has no such thing
        assert made.state_dict() == {"step": 7, "batches_committed": 14, "data": data.position.to_json()}
        made.shutdown()


def test_small_functions() -> None:
    assert manager.get_timeout(None, timedelta(seconds=3)) == timedelta(seconds=3)
    assert manager.get_timeout("5", timedelta(seconds=3)) == timedelta(seconds=5)
    assert [manager.extract_trailing_digits(s) for s in ("train_ddp_12", "0", "a", "")] == [12, 0, 0, 0]
    assert manager.MANAGER_PORT_ENV == "TORCHFT_MANAGER_PORT"
    tensor = torch.rand(3, requires_grad=True)
    copy = local_sgd.extract_local_tensor(tensor)
    assert torch.equal(copy, tensor)
    assert not copy.requires_grad
    assert copy.data_ptr() != tensor.data_ptr()


@pytest.fixture
def adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trainers of `apart` use the adapters' classes."""
    monkeypatch.setattr(apart, "DiLoCo", local_sgd.DiLoCo)
    monkeypatch.setattr(apart, "LocalSGD", local_sgd.LocalSGD)


@pytest.mark.parametrize("algorithm", ["diloco", "local_sgd"])
@pytest.mark.usefixtures("adapted")
def test_groups_agree_on_their_first_weights_when_the_model_is_used_first(
    monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(apart, "Manager", manager.Manager)
    late = threading.Event()  # the second group comes when the first has entered
    seen: list[int] = []
    with lighthouse(2) as address:
        groups = run_threads(2, lambda g: apart.LocalTrainer(g, address, algorithm=algorithm, sync_every=3))
        saved = [g.manager.register_state_dict_fn("of the loop", lambda s: None, _needs_loop(g)) for g in groups]
        assert saved == [None, None]

        def train(i: int) -> None:
            group = groups[i]
            if i == 1:
                assert late.wait(scaled(20))
            with group.loop as group.entered:  # type: ignore[attr-defined]
                late.set()  # so entering has asked nobody
                seen.append(group.manager.current_step())
                for _ in range(10):
                    group.step()
            seen.append(group.manager.current_step())

        run_threads(2, train)
        run_threads(2, lambda i: groups[i].manager.shutdown())
    assert sorted(seen) == [0, 0, 3, 3]  # exchanges, as torchft counts
    want, own = apart.reference(2, 10, sync_every=3, algorithm=algorithm)
    for g in groups:
        apart.near(g.history[3], want[2])
        apart.near(g.weights(), own[g.group])


@pytest.mark.parametrize("algorithm", ["diloco", "local_sgd"])
@pytest.mark.usefixtures("adapted")
def test_weights_that_are_loaded_inside_with_are_those_that_heal(algorithm: str) -> None:
    with lighthouse(2) as address:
        groups = [apart.LocalTrainer(g, address, algorithm=algorithm, sync_every=3) for g in range(2)]

        def first(i: int) -> float:
            with groups[i].loop, torch.no_grad():
                for p in groups[i].net.parameters():
                    p.fill_(5.0)
                with torch.enable_grad():
                    groups[i].net(apart.batch(0, 0))
                return float(next(groups[i].net.parameters()).flatten()[0])

        assert run_threads(2, first) == [5.0, 5.0]
        run_threads(2, lambda i: groups[i].manager.shutdown())


def _needs_loop(group: Any) -> Any:
    """As torchft's own examples do: what is saved is reached through the object that `with` gives."""
    return lambda: {"exchanges": group.entered.exchanges}


@pytest.mark.usefixtures("adapted")
def test_a_model_that_is_never_called_begins_with_the_first_inner_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "Manager", manager.Manager)
    with lighthouse() as address:
        group = apart.LocalTrainer(0, address, sync_every=2)
        with group.loop:
            for _ in range(4):
                for p in group.net.parameters():
                    p.grad = torch.ones_like(p)
                group.inner.step()
            with torch.no_grad():
                group.net(apart.batch(0, 0))
        assert (group.loop.exchanges, group.manager.current_step()) == (2, 2)
        group.manager.shutdown()


def test_over_http_a_timeout_of_zero_does_not_wait() -> None:
    transport: HTTPTransport[Any] = HTTPTransport(timedelta(seconds=scaled(10)), 0, host=HOST)
    try:
        transport.send_checkpoint([], 3, STATE, timeout=timedelta(seconds=10))
        got = transport.recv_checkpoint(0, transport.metadata(), 3, timedelta(seconds=scaled(10)))
        assert torch.equal(got["weights"], STATE["weights"])
        for zero in (timedelta(0), 0, 0.0):
            with pytest.raises(TransferError, match="timed out after 0 s"):
                transport.recv_checkpoint(0, transport.metadata(), 3, zero)
    finally:
        transport.shutdown()


def test_torchfts_transport_through_a_process_group_fills_what_the_constructor_was_told() -> None:
    mine = {"weights": torch.zeros_like(STATE["weights"])}
    source: PGTransport[Any] = PGTransport(None, timedelta(seconds=scaled(20)), "cpu")
    destination = PGTransport(None, timedelta(seconds=scaled(20)), "cpu", lambda: mine)
    try:
        source.send_checkpoint([1], 3, STATE, timeout=timedelta(0))
        for timeout in (0.0, timedelta(seconds=scaled(20)), None):
            got = destination.recv_checkpoint(0, source.metadata(), 3, timeout)
            assert got["weights"] is mine["weights"]
        assert torch.equal(mine["weights"], STATE["weights"])
    finally:
        source.shutdown()
        destination.shutdown()


def test_a_future_with_a_deadline() -> None:
    never: Future[int] = Future()
    with pytest.raises(TimeoutError, match=r"did not complete within 0.01 s"):
        futures.future_wait(never, timedelta(seconds=0.01))
    with pytest.raises(TimeoutError, match=r"did not complete within 0.02 s"):
        futures.future_timeout(never, 0.02).wait()
    soon: Future[int] = Future()
    limited = futures.future_timeout(soon, scaled(30))
    soon.set_result(4)
    assert limited.wait() == futures.future_wait(soon, 1.0) == 4
    broken: Future[int] = Future()
    limited = futures.future_timeout(broken, scaled(30))
    broken.set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        limited.wait()


def test_a_block_with_a_deadline() -> None:
    late = threading.Event()
    with futures.context_timeout(late.set, timedelta(seconds=0.01)):
        assert late.wait(scaled(10))
    never = threading.Event()
    with futures.context_timeout(never.set, timedelta(seconds=0.05)):
        pass
    done = threading.Event()
    futures._TIMEOUT_MANAGER.after(0.1, lambda: 1 // 0)  # costs nobody else's deadline
    futures._TIMEOUT_MANAGER.after(0.11, done.set)
    assert done.wait(scaled(10))
    assert not never.is_set()


def test_readers_or_a_writer() -> None:
    lock = RWLock(timeout=0.01)
    with lock.r_lock(), lock.r_lock():
        assert not lock.w_locked()
        with pytest.raises(TimeoutError, match=r"to write timed out after 0.01 s: 2 readers hold it"):
            lock.w_acquire()
    with lock.w_lock():
        assert lock.w_locked()
        with pytest.raises(TimeoutError, match=r"to read timed out after 0.01 s: a writer holds it"):
            lock.r_acquire()
    patient = RWLock()
    patient.w_acquire()
    threading.Timer(0.02, patient.w_release).start()  # another thread's
    patient.r_acquire()
    patient.r_release()
