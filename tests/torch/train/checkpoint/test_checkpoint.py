"""Durable checkpoints of a job, as a script uses them."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.torch.train.fakes import run_threads
from tests.util import scaled, wait_for
from torchft_x import Checkpoint
from torchft_x.core.training import save_duty
from torchft_x.errors import ConfigError, DeadlineError, LeafError, TransferError, UnsavedError
from torchft_x.timing import TIMING
from torchft_x.train.checkpoint import claiming
from torchft_x.train.setup.connect import GroupConnection
from torchft_x.transfer.durable import claim, names, writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import DeniedError, Store

WAIT = scaled(20)


class Job:
    """Stands for a Manager: the step and the group's index are set by the test."""

    def __init__(self, group: str = "0", lighthouse: str = "http://a:1", rank: int = 0, ranks: int = 1) -> None:
        self.at = 0
        self.index: int | None = 0
        self.events: list[dict[str, Any]] = []
        options = SimpleNamespace(group_rank=rank, group_world_size=ranks, lighthouse=lighthouse)
        connection = SimpleNamespace(
            replica_id=f"{group}:attempt",
            others_train=False,
            agree=lambda about, said, timeout: said,
            all_fine=lambda about, fine, timeout: fine,
        )
        emit = SimpleNamespace(emit=lambda name, **fields: self.events.append({"event": name, **fields}))
        status = SimpleNamespace(pause=lambda seconds: None)
        self.context = SimpleNamespace(options=options, connection=connection, events=emit, status=status)

    def current_step(self) -> int:
        return self.at

    def participating_rank(self) -> int | None:
        return self.index

    def state_dict(self) -> dict[str, int]:
        return {"step": self.at, "batches_committed": 2 * self.at, "committed_in": 5}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["step"]

    @contextlib.contextmanager
    def planned_pause(self, reason: str, seconds: float) -> Iterator[None]:
        yield


class Counter:
    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Run:
    all: list[Run] = []

    def __init__(self, url: str, job: Job | None = None, *, every: int = 10, **kwargs: Any) -> None:
        self.job = job or Job()
        self.model = nn.Linear(3, 2)
        self.adamw = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.data = Counter()
        given = torch.compile(self.model) if kwargs.pop("compiled", False) else self.model
        parts = {"model": given, "optim": self.adamw, "data": self.data}
        kwargs.setdefault("timeout", WAIT)
        self.parts = kwargs.pop("parts", parts)
        self.checkpoint = Checkpoint(self.job, url, self.parts, every=every, **kwargs)  # type: ignore[arg-type]
        self.all.append(self)

    def step(self) -> None:
        self.adamw.zero_grad()
        self.model(torch.ones(1, 3)).sum().backward()
        self.adamw.step()
        self.data.position += 7
        self.job.at += 1
        self.checkpoint.step()

    def run_to(self, step: int) -> Run:
        while self.job.at < step:
            self.step()
        return self

    def claimed(self) -> Run:
        self.checkpoint._claiming.wait(WAIT)  # type: ignore[union-attr]
        return self

    def check_equal(self, other: Run) -> None:
        assert all(torch.equal(a, b) for a, b in zip(self.model.parameters(), other.model.parameters(), strict=True))

    def with_write(self, write: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        """Replace the store's `write`, which is returned."""
        real = self.checkpoint._store.write
        self.checkpoint._store.write = write  # type: ignore[method-assign]
        return real

    def fail_writes(self, error: Exception) -> Callable[[str, Any], None]:
        """Let each `write` of the store raise `error`. Return the real one."""

        def fail(name: str, parts: Any) -> None:
            raise error

        return self.with_write(fail)

    def idle(self) -> Run:
        assert self.checkpoint._saving.wait(WAIT)
        return self


def steps(url: str) -> list[int]:
    return sorted(n.step for folder in Store(url).children() if (n := names.parse(folder)) is not None)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "run")
    while Run.all:
        Run.all.pop().checkpoint.close()


@pytest.mark.parametrize(("was", "is_now"), [(False, False), (False, True), (True, False)])
def test_a_run_is_saved_and_resumed_compiled_or_not(url: str, was: bool, is_now: bool) -> None:
    """torch.compile(model) has other names for the same parameters."""
    first = Run(url, compiled=was)
    assert not first.checkpoint.resume()  # nothing is there
    first.run_to(10).idle().run_to(20).idle().run_to(25).checkpoint.finish()
    assert steps(url) == [20, 25]
    second = Run(url, compiled=is_now)
    assert second.checkpoint.resume()
    assert second.job.at == 25
    assert second.data.position == 25 * 7
    first.check_equal(second)
    first.run_to(30)
    second.run_to(30)
    first.check_equal(second)


def test_a_save_is_told_and_a_dropped_step_saves_nothing(url: str) -> None:
    run = Run(url).run_to(10).idle()
    run.checkpoint.step()
    run.idle()
    (event,) = run.job.events
    assert (event["event"], event["step"]) == ("checkpoint", 10)
    assert event["bytes"] > 0


def test_another_group_takes_over_in_the_middle_of_a_save(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [Run(url, Job(group=g)) for g in "01"]
    groups[1].job.index = 1
    whole = writer.write_shard
    gone, over = threading.Event(), threading.Event()

    def half(store: Store, save: names.Name, shard: Any, *more: Any) -> None:
        if save.writer.startswith("0-attempt"):
            store.write(f"{save}/shard-00000.data", [b"half"])
            gone.set()
            over.wait()  # as a process that is gone
        whole(store, save, shard, *more)

    monkeypatch.setattr(writer, "write_shard", half)
    for group in groups:
        group.run_to(10)
    assert gone.wait(WAIT)
    groups[1].job.index = 0
    groups[1].run_to(12).idle()
    assert newest(Store(url)).step == 11  # type: ignore[union-attr]
    assert steps(url) == [11]  # and what the first one left is gone
    over.set()


def test_the_last_step_is_saved_once(url: str) -> None:
    run = Run(url).run_to(10)
    run.checkpoint.finish()
    assert len(run.job.events) == 1
    again = Run(url)
    again.checkpoint.resume()
    again.checkpoint.finish()  # it has trained nothing
    assert not again.job.events


def test_who_is_told_to_stop_saves_where_it_stands(url: str) -> None:
    run = Run(url).run_to(13)
    run.checkpoint.leave()
    assert newest(Store(url)).step == 13  # type: ignore[union-attr]
    assert claim.read_claim(Store(url))[2] is False  # type: ignore[index]
    other = Run(url, Job(group="1"))
    other.job.index = 1
    other.run_to(15)
    other.checkpoint.leave()  # it isn't the one that saves
    assert steps(url) == [10, 13]


def test_who_is_told_to_stop_and_can_not_save_only_warns(url: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(url).run_to(1).claimed()
    run.fail_writes(TransferError("No space left."))
    run.checkpoint.leave()
    assert "the last checkpoint was not saved: No space left" in caplog.text


def test_a_job_that_is_done_frees_its_url_at_once(url: str) -> None:
    run = Run(url).run_to(3)
    run.checkpoint.finish()
    job, _, over = claim.read_claim(Store(url))  # type: ignore[misc]
    assert over
    other = Run(url, Job(lighthouse="http://b:1"))
    assert other.checkpoint.resume()
    other.run_to(6)
    other.checkpoint.finish()
    assert claim.read_claim(Store(url))[0] != job  # type: ignore[index]
    assert newest(Store(url)).step == 6  # type: ignore[union-attr]


def test_two_jobs_on_one_url_are_one_too_many(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "TIMING", replace(TIMING, claim_beat=0.05))
    first = Run(url).run_to(1)
    first.claimed()
    second = Run(url, Job(lighthouse="http://b:1")).run_to(1)
    with pytest.raises(ConfigError, match="another job that runs now"):
        wait_for(second.step, what="the refusal")
    second.checkpoint.close()
    first.run_to(10).idle()
    assert steps(url) == [10]
    first.checkpoint.close()


def test_the_last_save_that_fails_is_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(url).run_to(1).claimed()
    run.fail_writes(TransferError("No space left."))
    run.run_to(10).idle().run_to(30).idle()
    told = [r.message for r in caplog.records if "not saved" in r.message]
    assert len(told) == 1
    assert "a checkpoint was not saved; training goes on: No space left" in told[0]
    with pytest.raises(UnsavedError, match="the last checkpoint was not saved: No space left"):
        run.checkpoint.finish()


def test_an_error_of_any_kind_costs_one_save(url: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(url).run_to(1).claimed()
    write = run.fail_writes(MemoryError("no pages"))
    run.run_to(10).idle()
    assert "failed (MemoryError('no pages'))" in caplog.text
    run.with_write(write)
    run.checkpoint.finish()  # it makes good for it
    assert steps(url) == [10]


def held_up(run: Run) -> threading.Event:
    gate = threading.Event()

    def slow(name: str, parts: Any) -> None:
        assert gate.wait(WAIT)
        write(name, parts)

    write = run.with_write(slow)
    return gate


def test_a_store_that_is_too_slow_skips_saves(url: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(url)
    gate = held_up(run)
    run.run_to(25)
    gate.set()
    run.idle()
    assert "that of step 10 is still being written; save less often" in caplog.text
    assert steps(url) == [10]
    run.checkpoint.finish()
    assert steps(url) == [10, 25]


def test_what_is_saved_is_the_state_of_its_step(url: str) -> None:
    run = Run(url)
    gate = held_up(run)
    run.run_to(10)
    weights = run.model.weight.detach().clone()
    run.run_to(19)
    assert not torch.equal(run.model.weight, weights)
    gate.set()
    run.idle()
    other = Run(url)
    other.checkpoint.resume()
    assert torch.equal(other.model.weight, weights)
    assert other.data.position == 70


def test_no_permission_is_said_at_the_start(url: str) -> None:
    run = Run(url)
    run.fail_writes(DeniedError("no permission to write it."))
    with pytest.raises(ConfigError, match="no permission to write"):
        wait_for(run.step, what="the refusal")


def test_other_parts_are_named(url: str) -> None:
    Run(url).run_to(10).idle().checkpoint.close()
    other = Run(url, parts={"model": nn.Linear(3, 2)})
    with pytest.raises(ConfigError, match=r"step-0000.*: it holds data, model, optim, and this script saves model"):
        other.checkpoint.resume()
    assert other.job.at == 0


def chain(layers: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), *(nn.Linear(2, 2) for _ in range(layers - 1)))


class Renamed(nn.Linear):
    """Takes states of another form: what is in a checkpoint need not look like it."""

    def load_state_dict(self, state: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().load_state_dict({"weight": state["0.weight"], "bias": state["0.bias"]}, **kwargs)


@pytest.mark.parametrize(
    ("saved", "here", "sentence"),
    [
        (chain(2), chain(1), "the checkpoint has 1.weight and 1 more, which"),
        (chain(1), chain(2), "the checkpoint lacks 1.weight and 1 more; it"),
        (nn.Linear(3, 2), nn.Linear(3, 2, bias=False), "the checkpoint has bias, which is not in the model; it was"),
        (nn.Linear(3, 2), chain(1), "the checkpoint lacks 0.weight and 1 more and has weight and 1 more"),
        (nn.Linear(3, 2), nn.Linear(3, 5), "weight is (2, 3) in the checkpoint and (5, 3) here"),
        (chain(1), Renamed(3, 2), ""),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_another_model_is_refused_before_a_tensor_is_changed(
    url: str, saved: nn.Module, here: nn.Module, sentence: str, compiled: bool
) -> None:
    Run(url, parts={"model": saved}).run_to(10).idle().checkpoint.close()
    before = [p.detach().clone() for p in here.parameters()]
    given = torch.compile(here) if compiled and sentence else here
    run = Run(url, parts={"model": given})
    if not sentence:
        assert run.checkpoint.resume()
        return
    with pytest.raises(ConfigError, match=f"step-0000.*: model: {re.escape(sentence)}"):
        run.checkpoint.resume()
    assert all(torch.equal(a, b) for a, b in zip(before, here.parameters(), strict=True))


def test_another_optimizer_is_refused_before_a_tensor_is_changed(url: str) -> None:
    Run(url).run_to(10).idle().checkpoint.close()
    run = Run(url)
    before = run.model.weight.detach().clone()
    groups = [{"params": [p]} for p in run.model.parameters()]
    parts = {"model": run.model, "optim": torch.optim.SGD(groups, lr=0.1), "data": run.data}
    other = Run(url, parts=parts)
    with pytest.raises(
        ConfigError, match=re.escape("optim: the checkpoint has groups of [2] parameters, and here are [1, 1]")
    ):
        other.checkpoint.resume()
    assert torch.equal(run.model.weight, before)


def beside_others(url: str) -> Run:
    """A group that comes to others which train."""
    run = Run(url)
    run.job.context.connection.others_train = True
    return run


def test_models_are_not_read_where_others_train(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Store.read

    def read_no_data(self: Store, name: str, start: int, end: int) -> bytes:
        assert not name.endswith(".data")
        return read(self, name, start, end)

    Run(url).run_to(10).idle().checkpoint.close()
    run = beside_others(url)
    before = run.model.weight.detach().clone()
    monkeypatch.setattr(Store, "read", read_no_data)
    assert not Run(url, run.job, parts=run.parts).checkpoint.resume()
    assert (run.job.at, run.data.position) == (0, 70)  # this one, the others need not have
    assert torch.equal(run.model.weight, before)
    run.parts.pop("data")
    monkeypatch.setattr(Store, "read", None)
    assert not Run(url, run.job, parts=run.parts).checkpoint.resume()


def test_a_group_whose_others_were_gone_starts_again_from_what_it_did_not_read(url: str) -> None:
    Run(url).run_to(10).idle().checkpoint.close()
    joins = Run(url, beside_others(url).job)
    joins.checkpoint.resume()
    with pytest.raises(TransferError, match=r"were gone before .*/step-00000010\S+ is further, and is read when"):
        joins.step()
    copied = Run(url, beside_others(url).job)
    copied.checkpoint.resume()
    copied.job.at = 11
    copied.step()


def test_a_damaged_one_is_named_and_not_skipped(url: str) -> None:
    Run(url).run_to(10).idle().run_to(20).idle().checkpoint.close()
    data = next(Path(url).glob("step-00000020.*/shard-00000.data"))
    raw = bytearray(data.read_bytes())
    raw[0] ^= 1
    data.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"shard-00000.data is damaged between bytes .*; remove its folder"):
        Run(url).checkpoint.resume()


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"every": 0}, "every is 0"),
        ({"keep": 0}, "keep 0"),
        ({"parts": {"model": 3}}, r"'model' is a int; a part has a name, state_dict\(\) and load_state_dict"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_mistakes(url: str, kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Run(url, **kwargs)


def test_a_state_that_can_not_be_saved_is_said_at_the_first_step(url: str) -> None:
    part = SimpleNamespace(state_dict=lambda: {"x": object()}, load_state_dict=None)
    part.load_state_dict = lambda state: None
    run = Run(url, parts={"odd": part})
    with pytest.raises(LeafError, match=r"parts/odd/x is of type builtins\.object"):
        run.checkpoint.step() or run.step()


def test_no_thread_is_left(url: str) -> None:
    before = set(threading.enumerate())
    run = Run(url).run_to(12)
    assert set(threading.enumerate()) - before
    run.checkpoint.finish()
    wait_for(lambda: set(threading.enumerate()) <= before, what="their end")


def test_all_ranks_resume_from_what_rank_0_chose(url: str) -> None:
    """One that is complete a moment later is nobody's."""
    Run(url).run_to(10).idle().checkpoint.close()
    first = str(newest(Store(url)))
    job = Job(rank=1, ranks=2)
    job.context.connection.agree = lambda about, said, timeout: {"name": first}
    Run(url).run_to(20).idle().checkpoint.close()
    run = Run(url, job)
    assert run.checkpoint.resume()
    assert job.at == 10
    job.context.connection.agree = lambda about, said, timeout: {"error": "It can't be read."}
    with pytest.raises(ConfigError, match=r"It can't be read\."):
        run.checkpoint.resume()


def test_ranks_agree_through_their_store() -> None:
    store = dist.HashStore()
    options = [SimpleNamespace(token="t", group_rank=r, group_world_size=3) for r in range(3)]
    ranks = [GroupConnection("0:x", None, o, None, store, "keys") for o in options]  # type: ignore[arg-type]
    says = [{"name": "x"}, None, None]
    assert run_threads(3, lambda r: ranks[r].agree("choice", says[r], WAIT)) == [{"name": "x"}] * 3
    assert run_threads(3, lambda r: ranks[r].all_fine("first", True, WAIT)) == [True] * 3
    for bad in range(3):
        assert run_threads(3, lambda r, bad=bad: ranks[r].all_fine(f"{bad}", r != bad, WAIT)) == [False] * 3  # type: ignore[misc]
    with pytest.raises(DeadlineError, match="rank 1: rank 0 has said nothing about silence"):
        ranks[1].agree("silence", None, 0.0)


def test_what_is_removed_while_it_is_read_is_read_again_from_a_newer_one(url: str) -> None:
    """A group that is started again reads, while the others save."""
    others = Run(url, keep=1).run_to(10).idle()
    read, left = Store.read, [10, 20]

    def slow(self: Store, name: str, start: int, end: int) -> bytes:
        if name.endswith(".data") and left:
            with torch.enable_grad():
                others.run_to(left.pop(0) + 10).idle()
        return read(self, name, start, end)

    run = Run(url, Job(group="1"))
    run.checkpoint._store.read = lambda *args: slow(run.checkpoint._store, *args)  # type: ignore[method-assign]
    assert run.checkpoint.resume()
    assert run.job.at == 30
    assert run.data.position == 30 * 7
    left += range(30, 1000, 10)
    with pytest.raises(ConfigError, match="5 checkpoints in a row were removed while they were read"):
        run.checkpoint.resume()


def test_a_rank_that_has_lost_it_takes_the_others_along(url: str) -> None:
    Run(url).run_to(10).idle().run_to(20).idle().checkpoint.close()
    first, second = sorted(name for name in Store(url).children() if name.startswith("step-"))
    job = Job(rank=1, ranks=2)
    chosen, fine = [first, second], [False, True]
    job.context.connection.agree = lambda about, said, timeout: {"name": chosen.pop(0)}
    job.context.connection.all_fine = lambda about, mine, timeout: fine.pop(0)
    assert Run(url, job).checkpoint.resume()
    assert job.at == 20


def test_a_sign_of_life_that_was_cut_off_is_nobodys_after_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "TIMING", replace(TIMING, claim_beat=0.05))
    monkeypatch.setattr(save_duty, "TIMING", replace(TIMING, claim_watch=0.2))
    for text in ("", "{", "[]", json.dumps({"job": "../x", "beat": 1, "over": False}), json.dumps({"job": "a"})):
        Path(url).mkdir(exist_ok=True)
        Path(url, "job.json").write_text(text)
        run = Run(url).run_to(1)
        run.claimed()
        run.checkpoint.close()
