"""What a group that comes while others train costs these: nothing for its first step, and no more than it copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch.train.fakes import background, run_threads
from tests.torch.train.jobs import (
    HOST,
    Trainer,
    same,
)
from tests.util import scaled
from torchft_x.comm.store.create import host_store


def together(trainers: list[Trainer]) -> int:
    """All step until the last one has healed, and some more. Returns the last step, which all of them made."""
    goals: list[int] = []  # the first to see that all are there says where they end: beyond what any is granted alone

    def run(trainer: Trainer) -> None:
        while not goals or trainer.manager.current_step() < goals[0]:
            if not goals and trainers[-1].manager.current_step() > 0:
                goals.append(max(t.manager.current_step() for t in trainers) + 3)
            trainer.step()

    run_threads(len(trainers), lambda i: run(trainers[i]))
    return goals[0]


@pytest.mark.parametrize("use_async_quorum", [True, False], ids=["async", "sync"])
def test_others_train_on_while_a_newcomer_makes_its_first_step(use_async_quorum: bool, address: str) -> None:
    kwargs: dict[str, Any] = {"rehearse": True, "use_async_quorum": use_async_quorum}
    a = Trainer(0, address, **kwargs).run_to(2)
    b = Trainer(1, address, **kwargs)
    seen: list[Any] = []

    def inside() -> None:
        a.run_to(8)  # on this thread, so nobody can have waited for the other group
        seen.extend([b.manager.num_participants(), b.manager.participating_rank(), b.manager.errored()])

    assert not b.step(inside)
    assert b.manager.num_participants() == 1  # scripts log such things after a step, committed or not
    assert seen == [1, None, None]
    assert b.manager.current_step() == 0
    last = together([a, b])
    assert a.manager.num_participants() == 2
    assert same(a.history[last], b.history[last])


def test_a_first_step_in_reductions_of_ones_own_is_local_and_dropped_even_where_it_fails(address: str) -> None:
    a = Trainer(0, address, rehearse=True).run_to(1)
    b = Trainer(1, address, rehearse=True)
    b.manager.start_quorum()
    tensor = torch.full((3,), 6.0)
    assert b.manager.allreduce(tensor).wait()
    assert tensor.tolist() == [6.0] * 3
    b.manager.report_error(ArithmeticError("not a number"))
    late: torch.futures.Future[int] = torch.futures.Future()
    wrapped = b.manager.wrap_future(late, 5)
    assert not b.manager.should_commit()
    late.set_exception(RuntimeError("after it"))
    assert wrapped.wait() == 5
    last = together([a, b])
    assert same(a.history[last], b.history[last])


def test_a_first_step_that_is_given_up_is_over_with_the_next_one(address: str) -> None:
    a = Trainer(0, address, rehearse=True).run_to(1)
    b = Trainer(1, address, rehearse=True)
    b.manager.start_quorum()  # and nothing more, as a script that skips a batch
    last = together([a, b])
    assert same(a.history[last], b.history[last])


def test_who_begins_the_job_makes_no_step_for_itself(pair_address: str) -> None:
    trainers = run_threads(2, lambda g: Trainer(g, pair_address, rehearse=True))
    assert run_threads(2, lambda g: trainers[g].step()) == [True, True]


def test_where_the_others_wait_for_it_a_newcomer_asks_at_once(pair_address: str) -> None:
    """With min_replicas 2 nobody trains without it."""
    a, b = run_threads(2, lambda g: Trainer(g, pair_address, rehearse=True).run_to(2))
    b.manager.shutdown(finished=False)
    stepping = background(lambda: a.run_to(4))
    again = Trainer(1, pair_address, rehearse=True)
    assert again.step()
    again.run_to(4)
    stepping.result(scaled(20))
    assert same(a.history[4], again.history[4])


def test_all_ranks_of_a_group_make_it(address: str) -> None:
    stores = [host_store(HOST, scaled(10)) for _ in range(2)]

    def make(group: int, rank: int) -> Trainer:
        port = stores[group][1].port
        return Trainer(group, address, rank=rank, world_size=2, store_port=port, rehearse=True)

    a = run_threads(2, lambda rank: make(0, rank).run_to(2))
    b = run_threads(2, lambda rank: make(1, rank))
    assert run_threads(2, lambda rank: b[rank].step()) == [False, False]
    last = together([*a, *b])
    assert all(same(a[0].history[last], t.history[last]) for t in [a[1], *b])
