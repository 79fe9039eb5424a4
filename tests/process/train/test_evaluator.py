"""Groups that are killed with SIGKILL inside an evaluation: its result has the bits of one process that evaluates alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.process.train import evaluating_worker
from tests.process.train.evaluating_worker import BATCH, EVERY, LENGTH, bits, sums_of
from tests.torch.train.jobs import Group, check_equal, finish, lighthouse, model, running, wait_steps
from tests.util import wait_for


def alone(folder: Path, step: int) -> str:
    net = model()
    net.load_state_dict(torch.load(folder / f"evaluated-{step}.pt"))
    rows = [sums_of(net, list(range(i, min(i + BATCH, LENGTH)))).tolist() for i in range(0, LENGTH, BATCH)]
    return bits([sum(column) for column in zip(*rows, strict=True)])


@pytest.mark.timeout(300)
def test_a_group_is_killed_in_an_evaluation(tmp_path: Path) -> None:
    rng = random.Random(3)
    killed: list[int] = []  # evaluations in which a group was killed
    with lighthouse() as address, running(3, address, tmp_path, evaluating_worker.main) as groups:
        wait_steps(groups, 3, "all groups to train together")
        victim = rng.choice(groups)
        done, more = len(victim.lines("row")), rng.randint(1, LENGTH // BATCH // 3)
        wait_for(lambda: len(victim.lines("row")) >= done + more, 60, "an evaluation")
        victim.kill()
        others = [g for g in groups if g is not victim]
        killed.append(victim.lines("row")[-1][0])
        wait_for(lambda: all(evaluated(g, killed[-1]) for g in others), 60, "the others' result")
        victim.start()
        wait_steps(groups, 3, "the group to be back")
        last = finish(groups, EVERY)
        check_equal(groups, last)
        found: dict[int, set[str]] = {step: set() for step in range(EVERY, last, EVERY)}
        for g in groups:
            for step, result, _ in g.lines("result"):
                found[step].add(result)
        assert found == {step: {alone(tmp_path, step)} for step in found}
        assert all(result.endswith(f"/{LENGTH}/0") for results in found.values() for result in results)
        tries = {
            step: [(g.path.stem, int(n)) for g in groups for at, n, _ in g.lines("try") if at == step]
            for step in killed
        }
        print(f"killed in the evaluations {tries} of {len(found)}")
        assert len({g.lines("newest")[0][:2] for g in groups}) == 1


def evaluated(group: Group, step: int) -> bool:
    return any(at == step for at, _, _ in group.lines("result"))
