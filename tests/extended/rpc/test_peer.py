"""torchft-nightly's clients and servers against ours, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters import PEER_PYTHON
from tests.unit.rpc.support import LOCAL, Asking, group, is_lost, known, lighthouse
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.core.types import State
from torchft_x.rpc.coordination import LighthouseClient, ManagerClient, ManagerServer

pytestmark = [pytest.mark.peer]

HOW = (
    f"{PEER_PYTHON} is not set. To run these: python3 -m venv /tmp/peerv; /tmp/peerv/bin/pip install torch==2.13.0; "
    "/tmp/peerv/bin/pip install torchft-nightly numpy torchdata; "
    f"{PEER_PYTHON}=/tmp/peerv/bin/python pytest -m peer"
)


class Peer:
    """Their side, as a process that does what it is told."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("peer_side.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=script.parent.parent
        )

    def __call__(self, name: str, *args: Any) -> Any:
        self._process.stdin.write(json.dumps([name, args]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "ok" in answer, answer
        return answer["ok"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    python = env.read(PEER_PYTHON)
    if python is None:
        pytest.skip(HOW)
    made = Peer(python)
    yield made
    made.close()


def test_their_client_on_our_lighthouse(peer: Peer) -> None:
    with lighthouse(2) as lh:
        a, b = peer("together", [["lighthouse_client", [lh.address(), name, 3]] for name in "ab"])
        assert a == b
        assert a["ids"] == ["a", "b"]
        assert a["data"] == {"k": 1}
        assert a["created"] > 1_700_000_000
    with lighthouse(2) as lh:
        kind, text = peer("impatient_client", lh.address())
        assert kind == "TimeoutError"
        assert "min_replicas" in text  # their own lighthouse says only "Timeout expired"


def test_their_managers_on_our_lighthouse(peer: Peer) -> None:
    with lighthouse(2) as lh:
        addresses = [peer("manager_server", name, lh.address()) for name in ("p0:x", "p1:x")]
        ids = []
        for step, failures in [(0, 0), (1, 0), (2, 1)]:
            results = peer("together", [["manager_client", [x, step, failures]] for x in addresses])
            assert [x["replica_rank"] for x in results] == [0, 1]
            assert {x["replica_world_size"] for x in results} == {2}
            assert {x["max_step"] for x in results} == {step}
            assert all(x["committed"] for x in results)
            assert [x["heal"] for x in results] == [False, step == 0]
            assert results[0]["quorum_id"] == results[1]["quorum_id"]
            ids.append(results[0]["quorum_id"])
        assert ids[0] == ids[1] < ids[2]  # same members: same id; a failed commit: a new one
        for name in ("p0:x", "p1:x"):
            peer("shutdown", name)


def test_their_manager_is_refused_beside_ours(peer: Peer) -> None:
    with lighthouse(1) as lh, group("o0:x", lh.address()) as ours:
        quorum = Asking(ours, state=State(0, 0), timeout=scaled(20.0)).result().quorum
        assert [x.replica_id for x in quorum.members] == ["o0:x"]
        address = peer("manager_server", "p0:x", lh.address())
        wait_for(lambda: known(lh)[-1:] == ["p0:x"], what="its heartbeat")
        with pytest.raises(AssertionError, match="Error"):
            peer("manager_client", address, 0)
        wait_for(lambda: is_lost(lh, "p0:x"), 10.0, "its refusal to be shown")
        peer("shutdown", "p0:x")


def test_their_client_on_our_manager(peer: Peer) -> None:
    with lighthouse() as lh, group("o0:x", lh.address()) as ours:
        for step in (0, 1, 1):  # their client may vote on one step twice: a dropped step is tried again
            result = peer("manager_client", ours.address(), step)
            assert result["committed"]
            assert result["metadata"] == "from the peer"
            assert (result["replica_rank"], result["replica_world_size"], result["heal"]) == (0, 1, False)


def test_our_clients_on_their_servers(peer: Peer) -> None:
    address = peer("lighthouse_server", 1)
    client = LighthouseClient(address, 5.0)
    client.heartbeat("a")
    quorum = client.quorum("a", timeout=scaled(10.0), address="x", store_address="y", step=4, data={"k": 1})
    assert [(p.replica_id, p.step, p.data) for p in quorum.participants] == [("a", 4, {"k": 1})]
    manager = ManagerClient(peer("manager_server", "a:x", address), 5.0)
    result = manager._quorum(group_rank=0, step=4, checkpoint_metadata="ours", shrink_only=False, timeout=scaled(20.0))
    assert (result.max_step, result.replica_world_size, result.replica_ids) == (4, 1, ["a:x"])
    assert manager._checkpoint_metadata(0, 5.0) == "ours"
    assert manager.should_commit(0, 4, True, scaled(5.0))
    other = LighthouseClient(peer("lighthouse_server", 5), 5.0)
    with pytest.raises(TimeoutError):
        other.quorum("a", timeout=0.3)


def test_our_manager_says_that_their_lighthouse_is_not_enough(peer: Peer) -> None:
    address = peer("lighthouse_server", 1)
    with pytest.raises(RuntimeError, match="torchft's own"):
        ManagerServer("a:x", address, "127.0.0.1", LOCAL, "s", 1, 0.1, 1.0, 0)


def test_two_of_our_managers_answer_their_clients_like_theirs(peer: Peer) -> None:
    with (
        lighthouse(2) as lh,
        group("o0:x", lh.address()) as a,
        group("o1:x", lh.address()) as b,
        ThreadPoolExecutor(1) as pool,
    ):
        ours = ManagerClient(b.address(), 5.0)
        asked = pool.submit(
            ours._quorum, group_rank=0, step=7, checkpoint_metadata="m", shrink_only=False, timeout=20.0
        )
        pool.submit(ours.should_commit, 0, 7, True, 20.0)
        theirs = peer("manager_client", a.address(), 5)
        result = asked.result()
        assert (theirs["heal"], theirs["max_step"], theirs["recover_src_manager_address"]) == (True, 7, b.address())
        assert (result.heal, result.recover_dst_replica_ranks) == (False, [0])
