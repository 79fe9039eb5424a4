"""Each item of each stream is committed once, whoever reads it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.torch.train.elastic.ledger import Count, Ledger
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, same
from tests.util import scaled
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.checkpoint.checkpoint import Checkpoint
from torchft_x.train.elastic.streams import ElasticStreams
from torchft_x.train.optim import OptimizerWrapper

STREAMS, LENGTH, STEPS = 5, 30, 12


class Numbers:
    """A stream with state: `length` numbers from `first` on. Counts what is read, by stream."""

    def __init__(self, stream: int, reads: Counter[int], length: int = LENGTH, first: int = 0) -> None:
        self.stream, self.reads, self.length, self.first, self.at = stream, reads, length, first, 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.at < self.length:
            self.at += 1
            self.reads[self.stream] += 1
            yield self.stream, self.first + self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Streamed(Trainer):
    """Counts the items that are committed: parameter [stream, number, counted over all epochs of `epoch` items]."""

    def __init__(
        self, group: int, address: str, *, streams: int = STREAMS, length: int = LENGTH, epoch: int = LENGTH, every: int = 100,
        policy: str = "constant", state: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(group, address, net=Ledger(streams, length))
        self.optim = Count(self.net.parameters())  # type: ignore[assignment]
        self.optimizer = OptimizerWrapper(self.manager, self.optim)
        self.reads: Counter[int] = Counter()

        def open_stream(stream: int, number: int) -> Any:
            source = Numbers(stream, self.reads, epoch, number * epoch)
            return source if state else iter(source)

        self.data = ElasticStreams(self.manager, open_stream, streams=streams, every=every, policy=policy)
        self.checkpoint: Checkpoint | None = None

    def resume(self, url: str) -> Checkpoint:
        parts = {"model": self.net, "optim": self.optim, "data": self.data}
        self.checkpoint = Checkpoint(self.manager, url, parts, every=5, timeout=scaled(20))
        self.checkpoint.resume()
        return self.checkpoint

    def one_step(self, hook: Callable[[], None] = lambda: None) -> bool:
        self.optimizer.zero_grad()
        for item in self.data.step():
            loss = self.model([item])
            hook()
            loss.backward()
        self.optimizer.step()
        if self.checkpoint is not None:
            self.checkpoint.step()
        return bool(self.optimizer.committed)

    def train(self, hook: Callable[[], None] = lambda: None, steps: int = STEPS) -> Streamed:
        while self.manager.current_step() < steps:
            self.one_step(hook)
        return self

    @property
    def counts(self) -> list[int]:
        count: Any = self.net.count
        assert count.max() <= 1
        done = [int(n) for n in count.sum(1).tolist()]
        assert all(count[stream, :n].sum() == n for stream, n in enumerate(done)), "a gap"
        position: Any = self.manager.context.step.data
        assert list(position.counts) == done
        return done


def lose_one(address: str, leaver: int, **kwargs: Any) -> list[Streamed]:
    """Let one of three groups leave inside step 7. Return the others."""
    meet = threading.Barrier(3)

    def body(i: int) -> None:
        met = False

        def hook() -> None:
            nonlocal met
            if trainers[i].manager.current_step() == 7 and not met:
                met = True
                meet.wait(scaled(20))
                if i == leaver:
                    trainers[i].manager.shutdown(finished=False)
                    raise InterruptedError

        try:
            trainers[i].train(hook)
        except InterruptedError:
            assert i == leaver

    trainers = run_threads(3, lambda g: Streamed(g, address, **kwargs))
    run_threads(3, body)
    stayed = [t for t in trainers if t.group != leaver]
    assert same(stayed[0].net.state_dict(), stayed[1].net.state_dict())
    leave(*stayed)
    return stayed


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
def test_a_lost_groups_streams_stay_where_they_are(state: bool) -> None:
    with lighthouse(2) as address:
        stayed = lose_one(address, 0, state=state)
    assert sorted(stayed[0].counts) == [STEPS - 1, STEPS - 1, STEPS, STEPS, STEPS]
    assert stayed[0].counts[:2] == [STEPS - 1] * 2, "the streams of group 0"


def test_strict_leaves_no_stream_behind() -> None:
    with lighthouse(2) as address:
        assert lose_one(address, 1, policy="strict")[0].counts == [STEPS] * STREAMS


def test_snapshots_bound_what_is_read_again() -> None:
    with lighthouse(2) as address:
        stayed = lose_one(address, 0, every=2)
    # Streams 0 and 1 were read by group 0 up to item 7, and go on from the snapshot of step 6.
    reads = stayed[0].reads + stayed[1].reads
    assert reads[0] + reads[1] <= 2 * (STEPS - 6)


def test_a_group_without_a_stream_takes_part_in_the_exchange_of_snapshots() -> None:
    with lighthouse(3) as address:
        trainers = run_threads(3, lambda g: Streamed(g, address, streams=2, every=2))
        run_threads(3, lambda g: trainers[g].train(steps=6))
        assert [t.counts for t in trainers] == [[6, 6]] * 3
        leave(*trainers)


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
def test_each_item_once_over_a_loss_a_newcomer_and_a_restart_of_all_groups(state: bool, tmp_path: Path) -> None:
    """One of three groups leaves inside a step, and its next attempt joins. Two groups go on from a checkpoint."""
    kwargs: dict[str, Any] = {"every": 4, "epoch": 10, "length": 10_000, "state": state}
    skipped = 4 if state else 4 + 10  # an exchange, and the epoch in which it was
    meet, gone = threading.Barrier(3), threading.Event()

    def hook(group: int) -> Callable[[], None]:
        met = False

        def inside() -> None:
            nonlocal met
            if trainers[group].manager.current_step() == 25 and not met:
                met = True
                meet.wait(scaled(20))
                if group == 0:
                    checkpoints[0].close()
                    trainers[0].manager.shutdown(finished=False)
                    raise InterruptedError

        return inside

    def together(trainer: Streamed, inside: Callable[[], None], lost: bool) -> Streamed:
        """Train until nine steps in a row had three groups: two exchanges of snapshots."""
        row = 0
        while row < 9 or lost:
            if trainer.one_step(inside):
                whole = trainer.manager.num_participants() == 3
                lost = lost and (whole or row == 0)
                row = row + 1 if whole else 0
        return trainer

    def body(i: int) -> Streamed | None:
        if i == 3:
            assert gone.wait(scaled(30))
            late = Streamed(0, address, **kwargs)
            checkpoints.append(late.resume(str(tmp_path)))
            return together(late, lambda: None, False)
        try:
            return together(trainers[i], hook(i), True)
        except InterruptedError:
            assert i == 0
            gone.set()
            return None

    with lighthouse(2) as address:
        trainers = run_threads(3, lambda g: Streamed(g, address, **kwargs))
        checkpoints = run_threads(3, lambda g: trainers[g].resume(str(tmp_path)))
        ended = [t for t in run_threads(4, body) if t is not None]
        assert len({tuple(t.counts) for t in ended}) == 1
        steps, counts = ended[0].manager.current_step(), ended[0].counts
        # The newcomer goes on from snapshots that it has copied; before that it reads an item for a step that it heals in.
        assert max(ended[2].reads.values()) <= 9 + skipped + 1
        run_threads(3, lambda i: checkpoints[1 + i].finish())
        leave(*ended)

    with lighthouse(2) as address:
        trainers = run_threads(2, lambda g: Streamed(g, address, **kwargs))
        run_threads(2, lambda g: trainers[g].resume(str(tmp_path)))
        assert [t.counts for t in trainers] == [counts, counts]
        run_threads(2, lambda g: trainers[g].train(steps=steps + 5))
        for trainer in trainers:
            assert trainer.counts == [n + 5 for n in counts]
            assert max(trainer.reads.values()) <= 5 + skipped
        leave(*trainers)


def test_a_stream_that_ends_begins_anew() -> None:
    epochs: list[tuple[int, int]] = []

    def open_stream(stream: int, epoch: int) -> Any:
        epochs.append((stream, epoch))
        return Numbers(stream, Counter(), length=5)

    with lighthouse(1) as address:
        trainer = Streamed(0, address)
        trainer.data._open_stream = open_stream
        seen = []
        for _ in range(STEPS):
            trainer.optimizer.zero_grad()
            for item in trainer.data.step():
                seen.append(item)
                trainer.model([item]).backward()
            trainer.optimizer.step()
        assert [n for stream, n in seen if stream == 3] == [i % 5 for i in range(STEPS)]
        assert [epoch for stream, epoch in epochs if stream == 3] == [0, 1, 2]
        leave(trainer)


def test_bad_streams_are_refused(address: str) -> None:
    trainer = Trainer(0, address)
    with pytest.raises(ConfigError, match="choose 'constant' or 'strict'"):
        ElasticStreams(trainer.manager, lambda s, e: [], streams=2, policy="shrink")
    data = ElasticStreams(trainer.manager, lambda s, e: [], streams=2)
    with pytest.raises(ConfigError, match="takes one ElasticLoader"):
        ElasticStreams(trainer.manager, lambda s, e: [], streams=2)
    trainer.optimizer.zero_grad()
    with pytest.raises(StepError, match="stream 0 has no items"):
        next(data.step())
    trainer.manager.report_error(InterruptedError())
    leave(trainer)
