"""Values survive the wire; what exceeds a limit is refused with a sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core import fingerprint as t
from torchft_x.core.fingerprint import Fingerprint, Trait
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import Member, Prepared, Quorum, State
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import messages, ranks
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits

texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("C",)), max_size=20)
words = texts.filter(str.isprintable)
names = words.filter(bool)
numbers = st.integers(0, 2**62)
prepared = st.builds(Prepared, numbers, numbers, st.integers(0, 2**64 - 1))
states = st.builds(State, numbers, numbers)
members = st.builds(
    Member,
    replica_id=names,
    address=words,
    store_address=texts,
    state=states,
    torn=st.booleans(),
    world_size=st.integers(0, limits.MAX_RANKS),
    shrink_only=st.booleans(),
    commit_failures=numbers,
    data=texts,
    handles=st.lists(texts, max_size=3).map(tuple),
    prepared=st.none() | prepared,
    library=words,
    carried=st.lists(numbers, max_size=3).map(tuple),
    votes_late=st.booleans(),
    held=st.lists(st.integers(0, limits.MAX_SLOTS), max_size=6, unique=True).map(
        lambda ends: tuple(zip(*[iter(sorted(ends)[: len(ends) // 2 * 2])] * 2, strict=True))
    ),
    weight=st.integers(1, limits.MAX_WEIGHT),
)
seconds = st.floats(0, 1e12)
quorums = st.builds(
    Quorum,
    id=numbers,
    config_id=numbers,
    number=numbers,
    members=st.lists(members, min_size=1, max_size=3).map(tuple),
    created=seconds,
    granted_through=numbers,
    lease=seconds,
)


@given(quorums)
def test_a_quorum_survives(quorum: Quorum) -> None:
    down = pb.Down(quorum=messages.pack(quorum))
    assert messages.down_to_event(down) == gm.QuorumArrived(quorum)


def test_a_packed_quorum_that_is_damaged_cut_short_or_too_large_is_refused() -> None:
    packed = messages.pack(Quorum(1, 1, 1, (Member("a:1"),)))
    for data in (b"", packed[:-1], b"?" + packed[1:], zlib.compress(bytes(grpc_options.MAX_CLIENT_MESSAGE + 1))):
        with pytest.raises(RefusedError, match="damaged or too large"):
            messages.unpack(data)


@given(numbers, numbers, numbers, seconds)
def test_what_asks_for_a_grant_and_the_grant_survive(quorum: int, step: int, number: int, span: float) -> None:
    up = messages.parse(pb.Up, messages.up_bytes(lm.Progress(0, quorum, step, number, span)), "message")
    assert messages.up_to_event(7, up) == lm.Progress(7, quorum, step, number, span)
    down = messages.parse(pb.Down, messages.down_bytes(lm.Extend(quorum, step, span, number, 7)), "message")
    assert messages.down_to_event(down) == lm.Extend(quorum, step, span, number)


@given(
    quorums,
    st.none() | states.filter(lambda s: s != State()),
    st.none() | prepared.filter(lambda p: p != Prepared(0, 0, 0)),
    st.booleans(),
)
def test_a_quorum_goes_to_a_rank_once(quorum: Quorum, base: State | None, commit: Prepared | None, again: bool) -> None:
    reply = ranks.QuorumReply(quorum, 5.0, base, commit, again)
    whole = messages.pack(quorum)
    for holds in {0, quorum.id}:
        data = ranks.quorum_reply_bytes(reply, whole, holds=holds, lease_left=2.0)
        held = quorum if holds else None
        assert ranks.quorum_reply_from_bytes(data, held, who="server", now=3.0) == reply
    short = ranks.quorum_reply_bytes(reply, whole, holds=quorum.id, lease_left=2.0)
    if quorum.id:
        with pytest.raises(RefusedError, match="not torchft_x's"):
            ranks.quorum_reply_from_bytes(short, None, who="server", now=3.0)


@given(members)
def test_the_peers_member_keeps_what_the_peer_knows(member: Member) -> None:
    back = messages.peer_member_from_proto(messages.peer_member_to_proto(member))
    state = State(member.state.step)
    assert back == dataclasses.replace(
        member, state=state, torn=False, prepared=None, library="", carried=(), votes_late=False, held=(), weight=1
    )


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_read_but_never_breaks(data: bytes) -> None:
    for kind, read in [
        (pb.Up, lambda p: messages.up_to_event(1, p)),
        (pb.Down, messages.down_to_event),
        (peer_pb.ManagerQuorumRequest, lambda p: ranks.ask_from_proto(1, p)),
        (peer_pb.ShouldCommitRequest, lambda p: ranks.VOTE.decode(p, call=1)),
    ]:
        with contextlib.suppress(RefusedError):
            read(messages.parse(kind, data, "message"))
    with contextlib.suppress(RefusedError):
        ranks.quorum_reply_from_bytes(data, None, who="server", now=0.0)


def test_a_heartbeat_is_kept_within_reason() -> None:
    assert limits.check_heartbeat(0.0) == 0.05
    assert limits.check_heartbeat(1e9) == 3600.0
    with pytest.raises(RefusedError):
        limits.check_heartbeat(math.nan)


printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("C", "Z")), min_size=1)
one_trait = st.builds(
    Trait,
    name=printable,
    digest=printable,
    words=printable,
    parts=st.lists(printable, max_size=3).map(tuple),
    ranks=st.lists(st.integers(0, t.MAX_RANKS), max_size=3).map(tuple),
)
traits = st.lists(one_trait, max_size=3).map(lambda items: Fingerprint(tuple(items)))


@given(traits)
def test_what_is_declared_survives(declared: Fingerprint) -> None:
    assert messages.TRAITS.decode(messages.TRAITS.encode(declared)) == declared


def one(parts: list[str]) -> pb.Traits:
    return pb.Traits(traits=[pb.Trait(name="a", digest="1", words="w", parts=parts)])


@pytest.mark.parametrize(
    ("hostile", "sentence"),
    [
        (one(parts=["x"] * (t.MAX_ALL_PARTS + 1)), "parts of traits"),
        (one(parts=["x" * t.MAX_TEXT] * 1000), "characters in parts of traits"),
    ],
)
def test_hostile_sums_of_sizes_are_refused(hostile: pb.Traits, sentence: str) -> None:
    """The limit of each field alone is pinned in golden.json."""
    with pytest.raises(RefusedError, match=sentence):
        messages.TRAITS.decode(hostile)


@given(st.binary(max_size=300))
def test_garbage_in_place_of_traits_is_refused_or_read_but_never_breaks(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        messages.TRAITS.read(data, "fingerprint")
