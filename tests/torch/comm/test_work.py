from __future__ import annotations

from datetime import timedelta
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from torchft_x.comm.rebuilt import alone
from torchft_x.comm.work import AllWork, DoneWork, FailedWork
from torchft_x.errors import CollectiveError


def test_failed_raises_each_time() -> None:
    work = FailedWork(CollectiveError("gone", ("a",)))
    assert work.is_completed()
    for _ in range(2):
        with pytest.raises(CollectiveError, match="gone") as raised:
            work.wait()
        assert raised.value.suspects == ("a",)
    with pytest.raises(CollectiveError, match="gone"):
        work.get_future().wait()


def test_all_waits_for_all_and_raises_the_first() -> None:
    t = torch.ones(2)
    assert AllWork([DoneWork(), DoneWork()], t).wait()
    assert DoneWork([t]).result() == [t]
    assert AllWork([DoneWork(), DoneWork()], t).get_future().wait() is t
    bad = AllWork([DoneWork(), FailedWork(CollectiveError("first")), FailedWork(CollectiveError("second"))], t)
    assert bad.is_completed()
    with pytest.raises(CollectiveError, match="first"):
        bad.wait()
    with pytest.raises(Exception, match="first"):
        bad.get_future().wait()


def test_all_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    class Recorded(DoneWork):
        def wait(self, timeout: timedelta | None = None) -> bool:
            assert timeout is not None
            limits.append(timeout.total_seconds())
            return True

    monkeypatch.setattr("torchft_x.comm.work.time", SimpleNamespace(monotonic=count().__next__))
    assert AllWork([Recorded(), Recorded()], None).wait(timedelta(seconds=5))
    assert limits == [4, 3]


def test_alone_refuses_what_needs_others_or_scales() -> None:
    for op in ("send", "recv"):
        with pytest.raises(CollectiveError, match="another member"):
            alone(op, [torch.ones(1)], 0, 0)
    with pytest.raises(CollectiveError, match="PREMUL_SUM"):
        alone("allreduce", [torch.ones(1)], torch.distributed.ReduceOp.PREMUL_SUM)
