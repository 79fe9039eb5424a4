"""The peer's names, arguments, defaults and errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.rpc.support import LOCAL, lighthouse
from tests.util import clock, scaled
from torchft_x import env
from torchft_x.errors import ConfigError, TokenError
from torchft_x.rpc.coordination import (
    LighthouseClient,
    LighthouseServer,
    ManagerClient,
    ManagerServer,
    QuorumResult,
    Timestamp,
)

SECOND = timedelta(seconds=scaled(1))


def manager(replica_id: str, lighthouse_addr: str, **kwargs: Any) -> ManagerServer:
    kwargs = {"world_size": 1, "bind": LOCAL, **kwargs}
    return ManagerServer(
        replica_id=replica_id,
        lighthouse_addr=lighthouse_addr,
        hostname="127.0.0.1",
        store_addr=f"store_{replica_id}",
        heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=10 * SECOND,
        quorum_retries=0,
        **kwargs,
    )


def quorums(clients: list[ManagerClient], **kwargs: Any) -> list[QuorumResult]:
    """Each client asks as rank 0 of its own group, all at once."""
    kwargs = {"group_rank": 0, "checkpoint_metadata": "m", "shrink_only": False, "timeout": 10 * SECOND, **kwargs}
    steps = kwargs.pop("steps", [0] * len(clients))
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(lambda client, step: client._quorum(step=step, **kwargs), clients, steps))


@pytest.fixture
def two() -> Iterator[list[ManagerServer]]:
    """The managers of two groups of one lighthouse."""
    with lighthouse(2) as lh:
        servers = [manager(f"g{i}:x", lh.address()) for i in range(2)]
        yield servers
        for s in servers:
            s.shutdown()


def test_quorum_result_is_mutable_with_the_peers_defaults() -> None:
    result = QuorumResult()
    assert (result.quorum_id, result.replica_world_size, result.heal) == (0, 1, False)
    assert result.recover_src_replica_rank is None
    result.max_step = 7
    assert result.max_step == 7


def test_two_managers_get_the_peers_answer(two: list[ManagerServer]) -> None:
    clients = [ManagerClient(s.address(), 10 * SECOND) for s in two]
    a, b = quorums(clients)
    assert (a.replica_rank, b.replica_rank, a.replica_world_size) == (0, 1, 2)
    assert a.quorum_id == b.quorum_id > 0
    assert (a.heal, b.heal) == (False, True)  # init_sync: all start from the primary's weights
    assert (b.recover_src_replica_rank, b.recover_src_manager_address) == (0, two[0].address())
    assert a.recover_dst_replica_ranks == [1]
    assert a.store_address == b.store_address == "store_g0:x"
    assert a.replica_ids == ["g0:x", "g1:x"]
    assert clients[0]._checkpoint_metadata(0, SECOND) == "m"
    assert [c.should_commit(0, 0, True, 5 * SECOND) for c in clients] == [True, True]
    again = quorums(clients, steps=[1, 1], init_sync=False)
    assert [x.quorum_id for x in again] == [a.quorum_id] * 2  # the id changes only with members or failures
    assert not any(x.heal for x in again)
    failed = quorums(clients, steps=[1, 1], commit_failures=1)
    assert failed[0].quorum_id == failed[1].quorum_id > a.quorum_id
    assert failed[0].commit_failures == 1


def test_a_behind_member_heals_from_the_one_at_the_top(two: list[ManagerServer]) -> None:
    a, b = quorums([ManagerClient(s.address(), 10 * SECOND) for s in two], steps=[0, 5])
    assert (a.heal, b.heal) == (True, False)
    assert (a.max_step, a.max_world_size) == (5, 1)
    assert (a.max_replica_rank, b.max_replica_rank) == (None, 0)
    assert a.recover_src_manager_address == two[1].address()


def test_the_lighthouse_class_and_client() -> None:
    server = LighthouseServer(bind="[::]:0", min_replicas=1)
    port = server.address().rsplit(":", 1)[1]
    client = LighthouseClient(f"http://127.0.0.1:{port}", SECOND)
    client.heartbeat("a")
    result = client.quorum(
        replica_id="a", timeout=5 * SECOND, address="x", store_address="y", step=3, world_size=2, data={"k": [1]}
    )
    (member,) = result.participants
    assert (member.address, member.store_address, member.step, member.world_size) == ("x", "y", 3, 2)
    assert member.data == {"k": [1]}
    assert isinstance(result.created, Timestamp)
    assert result.created.seconds > 1_700_000_000
    server.shutdown()
    server.shutdown()
    assert "closed" in repr(server)


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({"min_replicas": 0}, "min_replicas"),
        ({"min_replicas": 1, "quorum_tick_ms": 0}, "tick"),
        ({"min_replicas": 1, "quorum_tick_ms": 6000, "heartbeat_timeout_ms": 5000}, "tick is 6 s and a silence of 5 s"),
    ],
)
def test_bad_arguments_are_named(kwargs: dict[str, int], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        LighthouseServer(LOCAL, **kwargs)


def test_the_token_of_the_run_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TOKEN, "secret")
    with lighthouse() as lh:
        LighthouseClient(lh.address(), SECOND).heartbeat("g0:x")
        server = manager("g0:x", lh.address())
        assert len(quorums([ManagerClient(server.address(), SECOND)])) == 1
        with pytest.raises(TokenError):
            LighthouseClient(lh.address(), SECOND, token="other").heartbeat("a")
        server.shutdown()


def test_deadlines_are_timeout_errors_and_the_rest_runtime_errors() -> None:
    with lighthouse(2) as lh:
        server = manager("g0:x", lh.address())
        client = ManagerClient(server.address(), SECOND)
        with pytest.raises(TimeoutError, match="No quorum in time"):
            quorums([client], timeout=timedelta(seconds=clock(0.2)))
        with lighthouse(2) as other, pytest.raises(TimeoutError, match="min_replicas"):
            LighthouseClient(other.address(), SECOND).quorum("a", timeout=clock(0.2))
        with pytest.raises(RuntimeError, match="Rank 9"):
            client._checkpoint_metadata(9, SECOND)
        server.shutdown()
        with pytest.raises(RuntimeError):
            quorums([client], timeout=SECOND)
    for kind in (ManagerClient, LighthouseClient):
        with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
            kind("http://127.0.0.1:9", timedelta(milliseconds=50))
