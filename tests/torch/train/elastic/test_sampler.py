"""Each sample is committed once per epoch, as the trained parameters themselves count."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse, same
from tests.util import scaled

CONSTANT: dict[str, Any] = {"global_batch": 12, "micro_batch": 2}
SHRINK: dict[str, Any] = {"policy": "shrink", "micro_batch": 3}
STRICT = CONSTANT | {"policy": "strict"}


@pytest.mark.parametrize("tail", ["wrap", "short", "drop"])
@pytest.mark.parametrize("dealing", [CONSTANT, SHRINK, STRICT], ids=["constant", "shrink", "strict"])
def test_each_sample_once(dealing: dict[str, Any], tail: str) -> None:
    with lighthouse(2) as address:
        trainers = run_threads(2, lambda g: LedgerTrainer(g, address, 31, 3, dealing | {"tail": tail}))
        run_threads(2, lambda g: trainers[g].train())
        options = trainers[0].manager.context.step.data_options
        assert options is not None
        for trainer in trainers:
            trainer.check(options.used(31) if tail == "drop" else None)
        assert same(trainers[0].net.state_dict(), trainers[1].net.state_dict())
        leave(*trainers)


@pytest.mark.parametrize("dealing", [CONSTANT, SHRINK, STRICT], ids=["constant", "shrink", "strict"])
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_group_that_leaves_inside_a_step_loses_no_sample(dealing: dict[str, Any], leaver: int) -> None:
    meet = threading.Barrier(3)

    def body(i: int) -> LedgerTrainer:
        met = False

        def hook(micro: Any) -> None:
            nonlocal met
            if trainers[i].manager.current_step() == 2 and not met:
                met = True
                meet.wait(scaled(20))
                if i == leaver:
                    trainers[i].manager.shutdown(finished=False)
                    raise InterruptedError

        try:
            return trainers[i].train(hook)
        except InterruptedError:
            return trainers[i]

    with lighthouse(2) as address:
        trainers = run_threads(3, lambda g: LedgerTrainer(g, address, 40, 2, dealing))
        run_threads(3, body)
        stayed = [t for t in trainers if t.group != leaver]
        for trainer in stayed:
            trainer.check()
        assert same(stayed[0].net.state_dict(), stayed[1].net.state_dict())
        leave(*stayed)
