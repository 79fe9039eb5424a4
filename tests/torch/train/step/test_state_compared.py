"""Groups compare parameters and optimizer states: what has changed in one of them by accident is found, named and healed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.apart import LocalTrainer, equal
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, same, start, two_by_two
from torchft_x.core.types import State
from torchft_x.errors import StepError
from torchft_x.observe.events import read_events
from torchft_x.train.context.committed import EVERY, CommittedState

STATE = ["", "exp_avg", "exp_avg_sq", "step"]
WEIGHT, MOMENT = 8, 10  # indexes of 2.weight and its exp_avg_sq: the comparison of so high a number reads it
BIT = 1 << 12
LAST = EVERY * MOMENT + 3


def flip(t: Trainer, index: int) -> None:
    """Flip a bit of the parameter or state with that index; a low one may be rounded away in the next step."""
    p = list(t.net.parameters())[index // 4]
    key = STATE[index % 4]
    (t.optim.state[p][key] if key else p.detach()).view(-1)[-1:].view(torch.int32)[0] ^= BIT


def train(trainers: list[Trainer], struck: Trainer, index: int = WEIGHT) -> None:
    def body(i: int) -> None:
        trainers[i].run_to(index * EVERY - 2)
        if trainers[i] is struck:
            flip(struck, index)
        trainers[i].run_to(LAST)

    run_threads(len(trainers), body)


def emitted(folder: Path, name: str) -> list[dict[str, Any]]:
    return [e for e in read_events(folder) if e["event"] == name and e.get("step", 0) > 1]


@pytest.mark.parametrize(
    ("count", "struck", "index", "others", "first"),
    [
        (3, 1, WEIGHT, "those of 2 others", "2.weight"),
        (3, 1, MOMENT, "those of 2 others", "exp_avg_sq of 2.weight"),
        (2, 0, WEIGHT, "that of another, and no majority says which is right", "2.weight"),
    ],
)
def test_group_1_copies_the_state_and_its_first_wrong_tensor_is_named(
    count: int, struck: int, index: int, others: str, first: str, run_dir: Path
) -> None:
    """Of three groups the struck one is wrong, of two the second."""
    with lighthouse(count) as address:
        trainers = start(count, address, min_replica_size=count)
        train(trainers, trainers[struck], index)
        leave(*trainers)
    assert {e["reason"] for e in emitted(run_dir, "error")} == {
        f"the parameters or optimizer state of group group_1 (127.0.0.1) differ from {others}: group group_1 (127.0.0.1) copies them",
        f"the first tensor that differs on this rank is {first}",
    }
    assert [e["group"] for e in emitted(run_dir, "heal_end")] == ["group_1"]
    assert all(same(t.history[LAST], trainers[0].history[LAST]) for t in trainers)


def test_all_ranks_of_a_group_copy_when_one_is_wrong(run_dir: Path, pair_address: str) -> None:
    def body(i: int, t: Trainer) -> Trainer:
        t.run_to(WEIGHT * EVERY - 2)
        if i == 3:
            flip(t, WEIGHT)
        return t.run_to(LAST)

    trainers = two_by_two(pair_address, body)
    healed = sorted((e["group"], e["rank"]) for e in emitted(run_dir, "heal_end"))
    assert healed == [("group_1", 0), ("group_1", 1)]
    assert {e["rank"] for e in emitted(run_dir, "error") if "first tensor" in e["reason"]} == {1}
    for rank in (0, 1):
        assert same(trainers[rank].history[LAST], trainers[2 + rank].history[LAST])


@pytest.mark.parametrize(("index", "name"), [(2, "the global value of 2.weight"), (6, "momentum_buffer of 2.weight")])
def test_groups_that_train_apart_compare_what_they_hold_alike(index: int, name: str, run_dir: Path) -> None:
    """Three groups of DiLoCo: its weights between two exchanges are each group's own, and are not compared."""
    last = index * EVERY + 3
    with lighthouse(3) as address:
        groups = run_threads(3, lambda g: LocalTrainer(g, address, sync_every=2, manager={"min_replica_size": 3}))

        def strike() -> None:
            if groups[1].loop.exchanges == index * EVERY - 1 and not struck:
                tensor = [t for source in groups[1].manager.context.committed._sources for _, _, t in source()][index]
                struck.append(tensor.view(-1)[-1:].view(torch.int32).bitwise_xor_(BIT))

        struck: list[torch.Tensor] = []
        run_threads(3, lambda g: groups[g].run_to(last, strike if g == 1 else None))
        leave(*groups)
    sentence = f"the first tensor that differs on this rank is {name}"
    assert sentence in {e["reason"] for e in emitted(run_dir, "error")}
    assert [e["group"] for e in emitted(run_dir, "heal_end")] == ["group_1"]
    assert all(equal(g.history[last], groups[0].history[last]) for g in groups)


def test_a_group_that_is_wrong_again_and_again_ends_with_a_sentence() -> None:
    def body(g: int) -> str:
        t = trainers[g]
        try:
            while t.manager.current_step() < 5 * EVERY:
                turn, rest = divmod(t.manager.current_step(), EVERY)
                if g == 1 and rest == EVERY - 2:
                    flip(t, turn + 1)
                t.step()
        except StepError as e:
            return str(e)
        finally:
            t.manager.shutdown()
        return ""

    with lighthouse(1) as address:
        trainers = start(2, address)
        good, wrong = run_threads(2, body)
    assert not good
    assert wrong.startswith("3 comparisons in a row have found this group's parameters or optimizer state wrong")


def test_states_may_differ_if_the_script_says_so() -> None:
    with lighthouse(2) as address:
        trainers = start(2, address, min_replica_size=2, compare_states=False)
        train(trainers, trainers[1])
        leave(*trainers)
    assert not same(trainers[0].history[LAST], trainers[1].history[LAST])


def test_an_optimizer_of_ones_own_needs_neither_state_nor_groups() -> None:
    class Nothing:
        pass

    committed = CommittedState(compares=True)
    committed.watch(Nothing())  # type: ignore[arg-type]
    committed.start_step(State(EVERY, 1))
    assert (committed.digest(), committed.moved()) == (0, False)
