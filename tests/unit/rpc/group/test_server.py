"""A group server between its ranks and the lighthouse: quorums, votes, deadlines with reasons, outages, ends."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.rank_calls import commit
from tests.rank_calls import quorum as quorum_of
from tests.unit.rpc.support import (
    LOCAL,
    Asking,
    Watched,
    asking,
    channel,
    client,
    group,
    lighthouse,
    members,
)
from tests.util import scaled, wait_for
from torchft_x.core.fingerprint import Fingerprint, describe
from torchft_x.core.types import JoinReason, State
from torchft_x.errors import AddressError, DeadlineError, RefusedError, TokenError, UnreachableError
from torchft_x.rpc.coordination import ManagerClient
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.token import metadata

NOWHERE = "http://127.0.0.1:9"  # discard: nobody listens there on a test machine


def test_all_ranks_of_a_group_get_the_same_quorum_and_vote() -> None:
    with (
        lighthouse() as lh,
        group("a:1", lh.address(), world_size=3) as a,
        client(a.address()) as one,
        client(a.address()) as two,
        ThreadPoolExecutor(3) as pool,
    ):
        torchft = ManagerClient(a.address(), scaled(10.0))
        for no, expected in [(None, True), (1, False)]:
            asks = [Asking(who, rank) for rank, who in enumerate((a, one, two))]
            quorum = asks[0].result().quorum
            assert [x.result().quorum for x in asks] == [quorum] * 3
            votes = [pool.submit(torchft.should_commit, rank, 0, rank != no, scaled(10.0)) for rank in range(3)]
            assert [v.result() for v in votes] == [expected] * 3


def test_a_deadline_says_when_other_groups_are_missing() -> None:
    with lighthouse(2) as lh, group("a:1", lh.address()) as a:
        with pytest.raises(DeadlineError, match=f"the lighthouse at {lh.address()} waits for other groups"):
            quorum_of(a, state=State(), timeout=0.3)
        with group("b:1", lh.address()) as b:  # the late answer is not lost, the next ask gets one
            asks = [Asking(a), Asking(b)]
            assert members(asks[0].result()) == ["a:1", "b:1"]


def test_a_lost_member_is_pushed_to_every_rank() -> None:
    with lighthouse(2, heartbeat_timeout_ms=60_000) as lh, group("a:1", lh.address(), world_size=2) as a:
        b = GroupServer(replica_id="b:1", lighthouse=lh.address(), store_address="", world_size=1, bind=LOCAL)
        with client(a.address()) as one:
            local, remote = Watched(), Watched()
            a.watch(local.on_revoked, local.on_end)
            one.watch(remote.on_revoked, remote.on_end)
            asks = [Asking(a), Asking(one, 1), Asking(b)]
            quorum = asks[0].result().quorum
            asks[2].result()
            _die(b)
            for watched in (local, remote):
                wait_for(lambda w=watched: w.overs, what="the loss to be pushed")
                quorum_id, lost, reason = watched.overs[0]
                assert (quorum_id, lost) == (quorum.id, ("b:1",))
                assert "refuses" in reason
                assert all(name != "torchft_x-rpc" for name in watched.threads)
            late = Watched()
            a.watch(late.on_revoked, late.on_end)
            wait_for(lambda: late.overs, what="a late watch to hear of it, too")


def _die(server: GroupServer) -> None:
    """What a SIGKILL does to the group's sockets, without the process."""
    from torchft_x.rpc.transport import loop

    async def cut() -> None:
        await server.shell._stream.close(0.0)
        await server._server.stop(None)

    loop.call(cut(), scaled(5.0))


def test_a_graceful_leave_loses_no_step() -> None:
    with lighthouse() as lh, group("a:1", lh.address()) as a:
        b = GroupServer(replica_id="b:1", lighthouse=lh.address(), store_address="", world_size=1, bind=LOCAL)
        watched = Watched()
        a.watch(watched.on_revoked, watched.on_end)
        asks = [Asking(a), Asking(b)]
        first = asks[0].result().quorum
        asks[1].result()
        assert commit(b, first.id)[0]
        b.close()
        b.close()  # twice does no harm
        assert commit(a, first.id)[0]
        state = State(1, first.id)
        assert members(Asking(a, state=state, reason=JoinReason.BOUNDARY).result()) == ["a:1"]
        assert watched.overs == []


def test_shutdown_frees_the_port_at_once() -> None:
    with lighthouse() as lh:
        with group("a:1", lh.address()) as a:
            bind = a.address().removeprefix("http://")
            in_use = pytest.raises(AddressError, match=r"group server .*can't listen .*in use")
            with in_use, group("b:1", lh.address(), bind=bind):
                pass
        for nonce in range(3):
            with group(f"a:2{nonce}", lh.address(), bind=bind) as again:
                assert again.address() == f"http://{bind}"


def test_a_closed_server_answers_open_calls() -> None:
    with lighthouse(2) as lh, group("a:1", lh.address()) as a:
        ask = Asking(a)
        wait_for(lambda: asking(lh), what="the join to arrive")
        a.close()
        with pytest.raises(RefusedError, match="leaving"):
            ask.result()


def test_an_unreachable_lighthouse_is_named() -> None:
    named = pytest.raises(UnreachableError, match=rf"{NOWHERE}.*refused.*TORCHFT_LIGHTHOUSE")
    with named, group("a:1", NOWHERE, connect_timeout=0.3):
        pass


def test_a_server_that_is_no_lighthouse_says_so() -> None:
    with (
        lighthouse() as lh,
        group("a:1", lh.address()) as a,
        pytest.raises(RefusedError, match="another program"),
        group("b:1", a.address()),
    ):
        pass


def declares(*parts: str) -> Fingerprint:
    return Fingerprint((describe("model", f"{len(parts)} tensors", parts),))


def test_ranks_over_the_network_declare_too() -> None:
    """Rank 1 of the second group holds another model than rank 1 of the first; both ranks hear the sentence."""
    right, wrong = declares("w (2, 3)"), declares("w (2, 4)")
    with (
        lighthouse(2) as lh,
        group("0:a", lh.address(), world_size=2) as a,
        group("1:b", lh.address(), world_size=2) as b,
        client(a.address()) as a1,
        client(b.address()) as b1,
    ):
        asks = [Asking(a, traits=right), Asking(a1, 1, traits=right)]
        wait_for(lambda: asking(lh), what="the first to wait")
        refused = [Asking(b, traits=right), Asking(b1, 1, traits=wrong)]
        for ask in refused:
            with pytest.raises(RefusedError, match=r"the model of its rank 1 has w \(2, 4\) where group 0's has"):
                ask.result()
        with group("2:c", lh.address(), world_size=2) as c, client(c.address()) as c1:
            asks += [Asking(c, traits=right), Asking(c1, 1, traits=right)]
            first = asks[0].result().quorum
            assert all(ask.result().quorum == first for ask in asks)
            # What was told once stays known without being sent again.
            asks = [
                Asking(x, rank, state=State(1, first.id), traits=right, reason=JoinReason.BOUNDARY)
                for rank, x in [(0, a), (1, a1), (0, c), (1, c1)]
            ]
            assert all(ask.result().quorum.id > first.id for ask in asks)


def test_a_model_of_ten_thousand_tensors_joins() -> None:
    parts = [f"{'deeply.nested.' * 7}layers.{i}.weight (4096, 4096) bfloat16" for i in range(10_000)]
    assert sum(map(len, parts)) > 1_000_000
    with (
        lighthouse(2) as lh,
        group("0:a", lh.address()) as a,
        group("1:b", lh.address()) as b,
        client(b.address()) as c,
    ):
        first = Asking(a, traits=declares(*parts))
        assert members(Asking(c, traits=declares(*parts)).result()) == ["0:a", "1:b"]
        first.result()


def test_the_groups_port_checks_the_token_and_its_input() -> None:
    with lighthouse(token="secret") as lh, group("a:1", lh.address(), token="secret") as a, channel(a.address()) as c:
        for method in ("Quorum", "ShouldCommit", "CheckpointMetadata", "Kill"):
            with pytest.raises(grpc.RpcError) as e:
                c.unary_unary(f"/{grpc_options.MANAGER}/{method}")(b"", timeout=scaled(5.0))
            assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as e:
                c.unary_unary(f"/{grpc_options.MANAGER}/{method}")(
                    os.urandom(64), timeout=scaled(5.0), metadata=metadata("secret")
                )
            assert e.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(TokenError), client(a.address()) as stranger:
            quorum_of(stranger, state=State(), timeout=scaled(5.0))


def test_kill_needs_a_token_even_where_nothing_else_does() -> None:
    killed: list[str] = []
    request = peer_pb.KillRequest(msg="please").SerializeToString()
    with lighthouse() as lh, group("a:1", lh.address(), on_kill=killed.append) as a, channel(a.address()) as c:
        with pytest.raises(grpc.RpcError, match="needs a token"):
            c.unary_unary(f"/{grpc_options.MANAGER}/Kill")(request, timeout=scaled(5.0))
        assert killed == []
    with (
        lighthouse(token="t") as lh,
        group("a:1", lh.address(), token="t", on_kill=killed.append) as a,
        channel(a.address()) as c,
    ):
        c.unary_unary(f"/{grpc_options.MANAGER}/Kill")(request, timeout=scaled(5.0), metadata=metadata("t"))
    assert killed == ["please"]


def test_a_rank_out_of_range_is_refused() -> None:
    with lighthouse() as lh, group("a:1", lh.address()) as a, client(a.address()) as one:
        for who in (a, one):
            with pytest.raises(RefusedError, match="rank 5"):
                quorum_of(who, group_rank=5, state=State(), timeout=scaled(5.0))
        with pytest.raises(RefusedError, match="Rank 7"):
            one.checkpoint_metadata(a.address(), 7, 5.0)


def test_a_deadline_names_the_missing_rank() -> None:
    with lighthouse() as lh, group("a:1", lh.address(), world_size=2) as a, client(a.address()) as one:
        for who in (a, one):
            with pytest.raises(DeadlineError, match="group rank 1 of 2 has not asked"):
                quorum_of(who, state=State(), timeout=0.1)
        asks = [Asking(a), Asking(one, 1)]
        asks[0].result()
        with pytest.raises(DeadlineError, match="group rank 1 of 2 has not voted"):
            ManagerClient(a.address(), scaled(10.0)).should_commit(0, 0, True, scaled(0.5))
