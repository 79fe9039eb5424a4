"""Ranks of a group agree through rank 0: no calls to the server inside a grant, one beginning for all, and a rank that gives up."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.torch.train.fakes import background, run_threads
from tests.torch.train.jobs import Trainer, lighthouse, ranks_of_one
from tests.util import scaled
from torchft_x.errors import CollectiveError, DeadlineError
from torchft_x.rpc.group.client import GroupClient


@contextlib.contextmanager
def group_of(ranks: int, address: str, **kwargs: object) -> Iterator[list[Trainer]]:
    """One group, its ranks as threads; each has committed a step."""
    with ranks_of_one(ranks, address, seed=0, **kwargs) as trainers:
        run_threads(ranks, lambda rank: trainers[rank].run_to(1))
        yield trainers


def empty_step(trainer: Trainer) -> bool:
    trainer.manager.start_quorum()
    return trainer.manager.should_commit()


def test_inside_a_grant_no_rank_calls_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    plain = GroupClient._call

    def counted(self: GroupClient, method: object, message: object, timeout: float) -> bytes:
        calls[type(message).__name__] += 1
        return plain(self, method, message, timeout)

    monkeypatch.setattr(GroupClient, "_call", counted)
    with lighthouse() as address, group_of(3, address) as trainers:
        run_threads(3, lambda rank: trainers[rank].run_to(5))
        calls.clear()
        run_threads(3, lambda rank: trainers[rank].run_to(60))
        # At the end of a grant both others ask; each step would be 110 and more.
        assert sum(calls.values()) <= 2 * 6, calls


def test_a_rank_that_gives_a_step_up_costs_that_step_only() -> None:
    def course(trainer: Trainer, rank: int, gives_up: int) -> list[bool]:
        out = [empty_step(trainer)]
        trainer.manager.start_quorum()
        if rank == gives_up:
            trainer.manager.start_quorum()  # a script that has thrown a step away, on one rank only
            out.append(False)
        else:
            out.append(trainer.manager.should_commit())
            trainer.manager.start_quorum()
        out.append(trainer.manager.should_commit())
        return [*out, empty_step(trainer)]

    for gives_up in (0, 1):
        with lighthouse() as address, group_of(2, address, init_sync=False) as trainers:
            got = run_threads(2, lambda rank, who=gives_up, all=trainers: course(all[rank], rank, who))
            assert got == [[True, False, True, True]] * 2


def test_all_ranks_begin_as_rank_0_even_one_whose_group_is_broken() -> None:
    """It had an error after the last commit: it must not ask alone while the others go on."""
    with lighthouse() as address, group_of(2, address, init_sync=False) as trainers:
        seen = set()
        for _ in range(20):
            run_threads(2, lambda rank: [empty_step(trainers[rank]) for _ in range(5)])
            trainers[1].manager._context.failures.fail(CollectiveError("a connection broke"))
            mine, others = run_threads(2, lambda rank: empty_step(trainers[rank]))
            assert mine == others
            seen.add(mine)
            if not mine:
                break
        assert False in seen  # inside a grant: they went on, and it voted no; at its end all ask, and nothing is lost
        assert run_threads(2, lambda rank: [empty_step(trainers[rank]) for _ in range(3)]) == [[True] * 3] * 2


def test_a_rank_that_does_not_vote_is_named_and_the_other_can_go() -> None:
    with lighthouse() as address, group_of(2, address, init_sync=False, timeout=scaled(1)) as trainers:
        run_threads(2, lambda rank: trainers[rank].manager.start_quorum())
        run_threads(2, lambda rank: trainers[rank].manager.wait_quorum())
        with pytest.raises(DeadlineError, match="group rank 1 of 2 has not voted"):
            trainers[0].manager.should_commit()


def test_a_rank_that_waits_hears_of_rank_0_s_end() -> None:
    with lighthouse() as address, group_of(2, address, init_sync=False) as trainers:
        waits = background(lambda: empty_step(trainers[1]))
        hub = trainers[0].manager._context.connection.hub
        assert hub is not None
        hub.close()
        with pytest.raises(CollectiveError, match="the connection to group rank 0 broke"):
            waits.result(scaled(10))
