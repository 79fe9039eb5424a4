"""Manager, DDP and Optimizer together: a real lighthouse, groups as threads, real gloo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.futures import Future

from tests.torch.train.fakes import background, run_threads
from tests.torch.train.jobs import (
    HOST,
    Gate,
    Trainer,
    leave,
    lighthouse,
    loss_of,
    model,
    near,
    reference,
    same,
    start,
)
from tests.util import clock, scaled, wait_for
from torchft_x.comm.store.create import host_store
from torchft_x.core.heal import WorldSizeMode
from torchft_x.errors import (
    AddressError,
    ConfigError,
    DeadlineError,
    FencedError,
    LeafError,
    RefusedError,
    StepError,
    TransferError,
    UnreachableError,
)
from torchft_x.net import parse_address
from torchft_x.observe.events import read_events
from torchft_x.rpc.status_query import lighthouse_overview
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.train.manager import Manager
from torchft_x.train.optim import OptimizerWrapper
from torchft_x.transfer.http.transport import HTTPTransport

BOTH = pytest.mark.parametrize("use_async_quorum", [True, False], ids=["async", "sync"])


def run_to(trainers: list[Trainer], step: int) -> None:
    run_threads(len(trainers), lambda g: trainers[g].run_to(step))


class Running:
    """A trainer that steps on a thread of its own until told to stop at a step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.until: int | None = None
        self._ended = background(self._run)

    def _run(self) -> None:
        while self.until is None or self.trainer.manager.current_step() < self.until:
            self.trainer.step()

    def leave(self, *others: Trainer) -> None:
        end = max(t.manager.current_step() for t in others)
        leave(*others)
        self.stop_at(end + 1)
        leave(self.trainer)

    def stop_at(self, step: int) -> None:
        self.until = step
        self._ended.result(scaled(30))


@pytest.fixture
def alone(address: str) -> Trainer:
    return Trainer(0, address)


# --- training ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_train_like_one_process(groups: int, use_async_quorum: bool) -> None:
    with lighthouse(groups) as addr:
        trainers = start(groups, addr, use_async_quorum=use_async_quorum)
        run_to(trainers, 4)
        leave(*trainers)
    # init_sync: everybody starts from the first group's weights, whatever it drew itself.
    want = reference(groups, 4, seed=0)
    for step in range(1, 5):
        for t in trainers:
            assert same(t.history[step], trainers[0].history[step])
        near(trainers[0].history[step], want[step - 1])
    assert trainers[0].manager.batches_committed() == 4 * groups


@BOTH
def test_a_newcomer_heals_bit_equal_and_the_survivor_loses_nothing(use_async_quorum: bool, address: str) -> None:
    a, b = start(2, address, use_async_quorum=use_async_quorum)
    run_to([a, b], 2)
    leave(b)
    a.run_to(5)
    running = Running(a)
    c = Trainer(1, address, seed=99, use_async_quorum=use_async_quorum)
    for _ in range(4):
        assert c.step()
    end = c.manager.current_step()
    running.leave(c)
    assert sorted(a.history)[: end + 1] == list(range(1, end + 2))
    for step in c.history:
        assert same(a.history[step], c.history[step])
    assert len(c.history) == 4
    assert c.manager.state_dict()["batches_committed"] <= a.manager.batches_committed()


@BOTH
def test_who_counts_in_the_step_of_its_heal(use_async_quorum: bool, address: str) -> None:
    a = Trainer(0, address, use_async_quorum=use_async_quorum).run_to(2)
    running = Running(a)
    b = Trainer(1, address, use_async_quorum=use_async_quorum)
    b.manager.start_quorum()
    assert b.manager.is_participating() is not use_async_quorum
    assert b.manager.num_participants() == (1 if use_async_quorum else 2)
    loss_of(b.model, 1, b.manager.current_step()).backward()
    assert b.finish_step()  # with the optimizer: groups compare their states
    assert b.step()
    assert b.manager.num_participants() == 2
    running.leave(b)


def test_without_init_sync_every_group_keeps_its_weights(pair_address: str) -> None:
    trainers = start(2, pair_address, init_sync=False)
    run_to(trainers, 1)
    assert not same(trainers[0].history[1], trainers[1].history[1])


def test_a_group_may_be_made_again_on_the_same_store(address: str) -> None:
    store = host_store(HOST)[0]

    def body(rank: int) -> str:
        for _ in range(2):
            t = Trainer(0, address, rank=rank, world_size=2, store_port=store.port).run_to(1)
            t.manager.shutdown()
        return t.manager._context.connection.replica_id

    first, second = run_threads(2, body)
    assert first == second


# --- trouble ----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_reported_error_drops_the_step_everywhere_and_training_goes_on(
    use_async_quorum: bool, pair_address: str
) -> None:
    a, b = start(2, pair_address, use_async_quorum=use_async_quorum, keep_gradients=False)
    run_to([a, b], 2)
    before = [{k: v.clone() for k, v in t.net.state_dict().items()} for t in (a, b)]

    def body(g: int) -> bool:
        t = (a, b)[g]
        return t.step((lambda: t.manager.report_error(RuntimeError("veto"))) if g else None)

    assert run_threads(2, body) == [False, False]
    assert a.manager.current_step() == b.manager.current_step() == 2
    for t, old in zip((a, b), before, strict=True):
        assert same(t.net.state_dict(), old)  # I6: a dropped step changes nothing
    run_to([a, b], 4)
    assert same(a.history[4], b.history[4])


@BOTH
def test_with_kept_gradients_only_who_reports_an_error_computes_again(
    use_async_quorum: bool, pair_address: str
) -> None:
    a, b = start(2, pair_address, use_async_quorum=use_async_quorum)
    run_to([a, b], 2)

    def body(g: int) -> list[bool]:
        if g == 0:
            return [a.step()]
        return [b.step(lambda: b.manager.report_error(RuntimeError("veto"))), b.step()]

    assert run_threads(2, body) == [[True], [False, True]]
    assert same(a.history[3], b.history[3])
    near(a.history[3], reference(2, 3)[2])
    run_to([a, b], 4)
    assert same(a.history[4], b.history[4])


def test_a_group_that_vanishes_releases_the_reduction_at_once(address: str) -> None:
    a, b = start(2, address, timeout=scaled(60.0))
    run_to([a, b], 2)
    gate = Gate()
    broken = background(lambda: b.step(gate))
    assert gate.reached.wait(scaled(10))
    done = background(a.step)
    wait_for(lambda: a.manager.steps.reductions.works, what="a's reduction to be issued")
    b.manager.shutdown(wait=False)
    done.result(scaled(10))  # and not the 60 s of its timeout
    gate.open.set()
    broken.exception(scaled(10))
    a.run_to(4)
    assert a.manager.num_participants() == 1


def test_a_failed_heal_is_tried_again_and_costs_the_others_nothing(address: str) -> None:
    a = Trainer(0, address).run_to(3)
    running = Running(a)
    b = Trainer(1, address, seed=9)
    transport: Any = b.manager._context.transport
    receive = transport.recv_checkpoint

    def torn(*args: Any, into: Any = None, **kwargs: Any) -> Any:
        for value in into["user"]["model"].values():
            value.fill_(float("nan"))
        error = TransferError("the source went away")
        error.torn = True
        raise error

    transport.recv_checkpoint = torn
    assert not b.step()
    transport.recv_checkpoint = receive
    assert b.manager.current_step() == 0
    while not b.step():
        pass
    assert b.step()
    running.leave(b)
    assert all(same(a.history[s], b.history[s]) for s in b.history)
    assert sorted(a.history) == list(range(1, max(a.history) + 1))


def test_memory_for_the_first_heal_is_there_before_it(address: str) -> None:
    """Once there are others to heal, and once the optimizer has its state; not again at every step."""
    asked: list[set[str]] = []

    class Transport(HTTPTransport[Any]):
        def prepare(self, state_dict: Any) -> None:
            asked.append(set(state_dict["user"]["default"]["optim"]["state"][0]))

    alone = Trainer(0, address, checkpoint_transport=Transport(host=HOST))
    alone.run_to(3)
    assert not asked
    running = Running(alone)
    other = Trainer(1, address)
    while not other.step():
        pass
    for _ in range(3):
        assert other.step()
    assert asked == [{"step", "exp_avg", "exp_avg_sq"}]
    running.leave(other)


def hidden() -> HTTPTransport:
    """Its state is offered under a name that nobody knows."""
    return HTTPTransport(scaled(20.0), host="nowhere.invalid")


def test_a_source_that_cant_be_reached_is_passed_over(address: str) -> None:
    b = Trainer(1, address).run_to(1)
    others = Running(b)
    a = Trainer(0, address, checkpoint_transport=hidden())  # it copies b's state, and comes first among the sources
    while not a.step():
        pass
    more = Running(a)
    c = Trainer(2, address)
    drops = 0
    while not c.step():
        drops += 1
    c.run_to(c.manager.current_step() + 2)
    leave(c)
    # A step that neither has come to: else one may wait for the other in a step that this one doesn't make any more.
    others.until = more.until = end = max(a.manager.current_step(), b.manager.current_step()) + 200
    for running in (others, more):
        running.stop_at(end)
    assert 1 <= drops <= 3
    assert all(same(b.history[s], c.history[s]) for s in c.history)


def test_a_group_that_can_never_heal_ends_with_a_sentence_and_the_others_go_on(address: str) -> None:
    a = Trainer(0, address, checkpoint_transport=hidden()).run_to(1)
    running = Running(a)
    b = Trainer(1, address, timeout=scaled(1.0))
    with pytest.raises(TransferError, match=r"heals in a row have failed .* from group_0:.*; the last: .*nowhere"):
        b.run_to(1)
    leave(b)
    running.stop_at(a.manager.current_step() + 3)
    assert a.manager.num_participants() == 1
    assert sorted(a.history) == list(range(1, max(a.history) + 1))


def test_allow_heal_false_neither_heals_nor_commits_what_is_behind(address: str) -> None:
    a = Trainer(0, address).run_to(2)
    running = Running(a)
    b = Trainer(1, address)
    b.manager.start_quorum(allow_heal=False)
    assert not b.manager.is_participating()
    loss_of(b.model, 1, 0).backward()
    assert not b.manager.should_commit()
    assert b.manager.current_step() == 0
    assert b.step()
    running.leave(b)


def test_shrink_only_keeps_newcomers_out(address: str) -> None:
    a = Trainer(0, address).run_to(2)
    b = Trainer(1, address)
    waiting = background(b.step)
    time.sleep(0.3)  # b's join is on its way; if it is late the test proves less, but doesn't fail
    a.manager.start_quorum(shrink_only=True)
    assert a.manager.num_participants() == 1
    loss_of(a.model, 0, 2).backward()
    assert a.manager.should_commit()
    running = Running(a)
    waiting.result(scaled(10))
    assert b.manager.current_step() > 3
    running.leave(b)


def test_a_group_that_differs_is_refused_in_all_its_ranks_and_the_others_train_on(address: str) -> None:
    store = host_store(HOST)[0]
    a = Trainer(0, address)
    a.manager.declare("data set", "a.txt")
    a.manager.declare_quantization("int8")
    running = Running(a.run_to(1))

    def refused(t: Trainer, sentence: str) -> None:
        with pytest.raises(RefusedError, match=sentence):
            t.step()
        t.manager.shutdown(wait=False)

    wider = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    refused(Trainer(1, address, net=wider), r"its model has 0\.weight \(9, 6\) float32 where group_0's has .* \(8, 6\)")
    elsewhere = Trainer(2, address)
    elsewhere.manager.declare("data set", "b.txt")
    refused(elsewhere, r"its data set is b\.txt where group_0's is a\.txt; give every")
    for group, given, name in ((3, "int4", "int4"), (4, False, "none")):
        other = Trainer(group, address)
        other.manager.declare_quantization(given)
        refused(other, f"its quantisation is {name} where group_0's is int8")
    two = {"world_size": 2, "store_port": store.port}
    sentence = "its group world size is 2 where group_0's is 1; give every group the same"
    run_threads(2, lambda rank: refused(Trainer(5, address, rank=rank, **two), sentence))
    running.stop_at(a.manager.current_step() + 2)
    assert sorted(a.history) == list(range(1, max(a.history) + 1))


def test_a_newer_attempt_of_the_group_ends_the_older(address: str) -> None:
    old = Trainer(0, address).run_to(1)
    Trainer(0, address)
    with pytest.raises(FencedError):
        background(lambda: old.run_to(1 << 30)).result(scaled(20))
    with pytest.raises(FencedError):
        old.manager.allreduce(torch.ones(1))


def test_a_leaf_that_cannot_be_sent_is_named_at_the_start(alone: Trainer) -> None:
    alone.manager.register_state_dict_fn("extra", lambda s: None, lambda: {"when": {"now": object()}})
    with pytest.raises(LeafError, match=r"extra.*when.*now"):
        alone.manager.start_quorum()


def test_different_state_dict_keys_are_told(address: str) -> None:
    a = Trainer(0, address).run_to(1)
    running = Running(a)
    b = Trainer(1, address, max_retries=0)
    b.manager.register_state_dict_fn("extra", lambda s: None, lambda: {"x": 1})
    with pytest.raises(StepError, match="register the same keys"):
        b.step()
    leave(b)
    running.stop_at(a.manager.current_step() + 1)


def test_a_time_that_contradicts_the_lighthouses_is_refused() -> None:
    with lighthouse(1) as addr, pytest.raises(ConfigError, match=f"quorum_timeout is .* lost after {clock(5):g} s"):
        Trainer(0, addr, quorum_timeout=clock(4.9))


def test_a_planned_pause_is_announced_and_ends(pair_address: str) -> None:
    a = Trainer(0, pair_address)

    def pauses() -> bool:
        (group,) = lighthouse_overview(parse_address(pair_address))["groups"]
        return group["does"] == "pauses" and "evaluation: for up to" in group["more"]

    def fail() -> None:
        with a.manager.planned_pause("evaluation", seconds=600):
            wait_for(pauses, what="the pause")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    wait_for(lambda: not pauses(), what="the end of the pause")
    with pytest.raises(ConfigError, match="planned_pause"), a.manager.planned_pause("x", seconds=0):
        pass


def test_no_quorum_in_time_says_why(pair_address: str) -> None:
    a = Trainer(0, pair_address)
    with pytest.raises(DeadlineError) as e:
        a.manager.start_quorum(timeout=0.3)
    assert isinstance(e.value, TimeoutError)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("http://no-such-host.invalid:29510", AddressError),
        ("http://127.0.0.1:1", UnreachableError),
        ("nonsense", AddressError),
    ],
)
def test_a_wrong_lighthouse_address_fails_in_seconds(address: str, error: type[Exception]) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=address.split("//")[-1].split(":")[0]):
        Trainer(0, address, connect_timeout=1.0)
    assert time.monotonic() - began < scaled(8)


# --- the calls --------------------------------------------------------------------------------------------------------


def test_reductions_by_operation_and_by_who_takes_part(pair_address: str) -> None:
    trainers = start(2, pair_address, min_replica_size=1, world_size_mode=WorldSizeMode.FIXED_WITH_SPARES)

    def body(g: int) -> dict[str, float]:
        m = trainers[g].manager
        m.start_quorum()
        assert m.is_participating() == (g == 0)
        out = {}
        for op in ("AVG", "SUM", "MAX", "MIN", "PRODUCT"):
            t = torch.tensor([-3.0 if g == 0 else 7.0])
            assert m.allreduce(t, reduce_op=getattr(ReduceOp, op)).wait()
            out[op] = t.item()
        whole = torch.tensor([5 + g])
        future = m.allreduce(whole, reduce_op=ReduceOp.SUM).get_future()
        assert future.wait() is whole
        assert whole.item() == 5
        with pytest.raises(ValueError, match="AVG needs floating point"):
            m.allreduce(whole)
        assert m.should_commit()
        return out

    # The spare changes nothing, whatever the operation, and gets the result.
    want = {"AVG": -3.0, "SUM": -3.0, "MAX": -3.0, "MIN": -3.0, "PRODUCT": -3.0}
    assert run_threads(2, body) == [want, want]


def test_after_an_error_the_rest_of_the_step_returns_at_once(alone: Trainer) -> None:
    m = alone.manager
    m.start_quorum()
    m.report_error(ValueError("first"))
    m.report_error(ValueError("second"))
    error = m.errored()
    assert error is not None
    assert str(error.original_exception) == "first"
    work = m.allreduce(torch.ones(2))
    assert work.wait() is False
    assert work.get_future().wait().tolist() == [1.0, 1.0]
    assert not m.should_commit()
    m.start_quorum()
    assert m.errored() is None
    assert m.should_commit()


def test_wrap_future_swallows_errors_and_waits_no_longer_than_told(alone: Trainer) -> None:
    m = alone.manager
    m.start_quorum()
    good: Future[int] = Future()
    wrapped = m.wrap_future(good, 0)
    good.set_result(3)
    assert wrapped.wait() == 3
    assert m.errored() is None
    assert m.wrap_future(Future(), 7, timeout=0.05).wait() == 7
    assert "took more than 0.05 s" in str(m.errored())
    assert not m.should_commit()


def test_a_future_of_an_earlier_quorum_says_nothing_of_the_step_in_hand(alone: Trainer) -> None:
    m = alone.manager
    m.start_quorum()
    late: Future[int] = Future()
    wrapped = m.wrap_future(late, 0)
    m.report_error(RuntimeError("this step is dropped"))
    assert not m.should_commit()
    m.start_quorum()
    m.wait_quorum()
    late.set_exception(RuntimeError("that of the step before"))
    assert wrapped.wait() == 0
    assert m.errored() is None
    assert not m.steps.reductions._unwanted  # so that it can be reduced again when a group is lost
    assert m.should_commit()


def test_calls_out_of_order_get_a_sentence(alone: Trainer) -> None:
    with pytest.raises(StepError, match=r"call manager\.start_quorum"):
        alone.manager.should_commit()
    with pytest.raises(StepError, match=r"call manager\.start_quorum"):
        loss_of(alone.model, 0, 0).backward()
    alone.step()
    with pytest.raises(StepError, match="start_quorum"):
        alone.manager.should_commit()
    with pytest.raises(ConfigError, match="closure"):
        alone.optimizer.step(lambda: 0.0)


def test_state_dict_takes_the_peers_two_keys(alone: Trainer) -> None:
    assert alone.manager.state_dict() == {"step": 0, "batches_committed": 0, "committed_in": 0}
    alone.manager.load_state_dict({"step": 7, "batches_committed": 14})
    assert alone.manager.current_step() == 7
    assert alone.step()
    assert alone.manager._step == 8
    assert alone.manager.batches_committed() == 15
    with pytest.raises(TransferError, match="batches_committed"):
        alone.manager.load_state_dict({"step": 1})


def test_shutdown_frees_everything_and_may_be_repeated(address: str) -> None:
    a = Trainer(0, address).run_to(1)
    server = a.manager._context.connection.client.address()
    a.manager.shutdown()
    a.manager.shutdown()
    port = int(server.rsplit(":", 1)[1])
    b = Trainer(0, address, port=port)
    assert b.manager._context.connection.client.address() == server


def test_what_happened_is_in_the_event_log(run_dir: Path, address: str) -> None:
    a = Trainer(0, address).run_to(2)
    a.step(lambda: a.manager.report_error(RuntimeError("veto")))
    a.run_to(3)
    leave(a)
    events = [e for e in read_events(run_dir) if e["role"] == "trainer"]
    names = [e["event"] for e in events]
    assert names[:3] == ["joined", "quorum", "configure"]
    assert [e["step"] for e in events if e["event"] == "commit"] == [0, 1, 2]
    [drop] = [e for e in events if e["event"] == "drop"]
    assert drop["reason"] == "veto"
    assert drop["step"] == 2
    assert names[-1] == "leave"
    assert all(e["group"] == "group_0" and e["rank"] == 0 for e in events)


def test_ddp_and_optimizer_work_with_an_autospecced_manager() -> None:
    manager = create_autospec(Manager)
    done = create_autospec(dist.Work)
    done.wait.return_value = True
    manager.allreduce.return_value = done
    manager.should_commit.side_effect = [False, True]
    net = model()
    ddp = DistributedDataParallel(manager, net)
    optimizer = OptimizerWrapper(manager, torch.optim.SGD(net.parameters(), lr=1.0))
    before = [p.clone() for p in net.parameters()]
    for moved in (False, True):
        optimizer.zero_grad()
        loss_of(ddp, 0, 0).backward()
        optimizer.step()
        assert optimizer.committed is moved
        assert any(not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)) is moved
    assert manager.start_quorum.call_count == 2
    assert manager.allreduce.call_count == 2
