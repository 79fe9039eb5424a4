"""A script that nobody launched: a Manager without a lighthouse's address."""

from __future__ import annotations

import pytest

from torchft_x import Manager, ProcessGroupGloo, env
from torchft_x.errors import UnreachableError
from torchft_x.net import parse_address
from torchft_x.rpc.coordination import LighthouseClient


def test_it_trains_with_a_lighthouse_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in (env.LIGHTHOUSE, env.REPLICA_GROUP_ID, env.NUM_REPLICA_GROUPS, env.RUN_DIR, env.MIN_REPLICAS):
        monkeypatch.delenv(name, raising=False)
    manager = Manager(pg=ProcessGroupGloo(), load_state_dict=lambda _: None, state_dict=dict, min_replica_size=1)
    try:
        for _ in range(3):
            manager.start_quorum()
            assert manager.num_participants() == 1
            assert manager.should_commit()
        address = manager.context.options.lighthouse
        assert address is not None
    finally:
        manager.shutdown()
    said = [line for line in capsys.readouterr().err.splitlines() if "of its own" in line]
    assert len(said) == 1
    assert address in said[0]
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == []
    assert parse_address(address, what="").host == "127.0.0.1"
    with pytest.raises(UnreachableError):  # it ends with the training
        LighthouseClient(address, 1.0)
