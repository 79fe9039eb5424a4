"""The large messages field by field, written by hand: of any value the codec makes the same, and reads it back."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rpc.codec.test_fingerprint import traits
from tests.rpc.codec.test_messages import members, names, numbers, quorums, seconds, states, texts, words
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State
from torchft_x.rpc.codec import messages, ranks
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits

spans = seconds | st.just(math.inf)


def state(v: State) -> pb.State:
    return pb.State(step=v.step, committed_in=v.committed_in)


def member(v: Member) -> pb.Member:
    prepared = v.prepared and pb.Prepared(quorum=v.prepared.quorum, step=v.prepared.step, digest=v.prepared.digest)
    return pb.Member(
        replica_id=v.replica_id,
        address=v.address,
        store_address=v.store_address,
        state=state(v.state),
        torn=v.torn,
        world_size=v.world_size,
        shrink_only=v.shrink_only,
        commit_failures=v.commit_failures,
        data=v.data,
        handles=v.handles,
        prepared=prepared,
        library=v.library,
        carried=v.carried,
        votes_late=v.votes_late,
    )


def quorum(v: Quorum) -> pb.Quorum:
    return pb.Quorum(
        id=v.id,
        config_id=v.config_id,
        number=v.number,
        members=map(member, v.members),
        created=v.created,
        granted_through=v.granted_through,
        lease_s=v.lease,
    )


def declared(v: Fingerprint) -> pb.Traits:
    return pb.Traits(
        traits=[pb.Trait(name=t.name, digest=t.digest, words=t.words, parts=t.parts, ranks=t.ranks) for t in v.items]
    )


@settings(max_examples=40)
@given(quorums)
def test_a_quorum(v: Quorum) -> None:
    assert messages.QUORUM.encode(v) == quorum(v)
    assert pb.Down.FromString(messages.quorum_bytes(v)) == pb.Down(quorum=quorum(v))


@settings(max_examples=40)
@given(
    st.builds(
        lm.Hello,
        session=st.just(7),
        replica_id=names,
        life=st.builds(Life, st.integers(0, limits.MAX_ATTEMPT), seconds, texts),
        address=words,
        state=states,
        quorum=st.none() | quorums,
        granted_through=numbers,
        lease_left=seconds,
        boot_id=texts,
        library=words,
        runs_on=st.booleans(),
    )
)
def test_a_hello(v: lm.Hello) -> None:
    made = messages.hello_to_proto(v, "group")
    assert made == pb.Hello(
        replica_id=v.replica_id,
        group_id="group",
        life=pb.Life(attempt=v.life.attempt, started=v.life.started, token=v.life.token),
        address=v.address,
        state=state(v.state),
        quorum=v.quorum and quorum(v.quorum),
        granted_through=v.granted_through,
        lease_left_s=v.lease_left,
        boot_id=v.boot_id,
        library=v.library,
        wire=grpc_options.WIRE,
        runs_on=v.runs_on,
    )
    assert messages.HELLO.decode(made, session=7) == v


@settings(max_examples=40)
@given(
    st.builds(
        gm.SendJoin,
        member=members,
        reason=st.sampled_from(list(JoinReason)),
        suspects=st.lists(texts, max_size=3).map(tuple),
        traits=st.none() | traits,
        number=numbers,
        step_seconds=seconds,
        patience=spans,
    )
)
def test_a_join(v: gm.SendJoin) -> None:
    join = pb.Join(
        member=member(v.member),
        reason=v.reason.value,
        suspects=v.suspects,
        number=v.number,
        step_seconds=v.step_seconds,
        patience_s=0.0 if v.patience == math.inf else v.patience,
    )
    if v.traits is not None:
        join.member.traits.CopyFrom(declared(v.traits))
    assert pb.Up.FromString(messages.up_bytes(v)) == pb.Up(join=join)
    fields = {f.name: getattr(v, f.name) for f in dataclasses.fields(v)}
    read = lm.Join(7, **fields | {"patience": v.patience or math.inf})
    assert messages.up_to_event(7, pb.Up(join=join)) == read


@settings(max_examples=40)
@given(
    st.builds(
        gm.Ask,
        call=st.just(7),
        rank=st.integers(0, limits.MAX_RANKS),
        state=states,
        torn=st.booleans(),
        shrink_only=st.booleans(),
        commit_failures=numbers,
        checkpoint_metadata=texts,
        handle=texts,
        reason=st.sampled_from(list(JoinReason)),
        suspects=st.lists(texts, max_size=3).map(tuple),
        traits=st.none() | traits,
        step_seconds=seconds,
        keeps=st.booleans(),
        votes_late=st.booleans(),
        patience=spans,
        usual=seconds,
    ),
    st.booleans(),
    numbers,
)
def test_an_ask(v: gm.Ask, init_sync: bool, holds: int) -> None:
    made = ranks.ask_to_proto(v, init_sync=init_sync, ours=True, holds=holds)
    assert made == peer_pb.ManagerQuorumRequest(
        group_rank=v.rank,
        step=v.state.step,
        checkpoint_metadata=v.checkpoint_metadata,
        shrink_only=v.shrink_only,
        init_sync=init_sync,
        commit_failures=v.commit_failures,
        reconfigure_handle=v.handle,
        committed_in=v.state.committed_in,
        torn=v.torn,
        reason=v.reason.value,
        suspects=v.suspects,
        ours=True,
        traits=b"" if v.traits is None else declared(v.traits).SerializeToString(),
        step_seconds=v.step_seconds,
        holds=holds,
        keeps=v.keeps,
        votes_late=v.votes_late,
        patience_s=0.0 if v.patience == math.inf else v.patience,
        usual_s=v.usual,
    )
    read = dataclasses.replace(v, patience=v.patience or math.inf, traits=v.traits if made.traits else None)
    assert ranks.ask_from_proto(7, made) == read
