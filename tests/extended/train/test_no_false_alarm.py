"""Ten thousand steps with 5,000 comparisons of gradients: no group is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.train.elastic.test_faulty_group import DEALING, Checked, reasons
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse, same
from tests.util import scaled

STEPS = 10_000


@pytest.mark.timeout(600)
def test_ten_thousand_steps_without_a_false_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One group leaves zeros in its gradients between steps, so that sums begin with zeros there."""
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    monkeypatch.setitem(DEALING, "check_every", 2)
    with lighthouse(3) as address:
        trainers = run_threads(3, lambda g: Checked(g, address, min_replica_size=3))
        zero = trainers[1].optimizer.zero_grad
        trainers[1].optimizer.zero_grad = lambda: zero(set_to_none=False)  # type: ignore[method-assign]
        assert run_threads(3, lambda g: trainers[g].train(last=STEPS), timeout=scaled(600)) == ["", "", ""]
        leave(*trainers)
    assert reasons(tmp_path) == []
    assert sum(len(slots) for t in trainers for slots in t.computed.values()) == STEPS * 8 + STEPS // 2
    assert all(same(t.net.state_dict(), trainers[0].net.state_dict()) for t in trainers)
