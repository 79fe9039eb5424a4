"""What a codec refuses when it is made: a field that would be lost, or a list that would arrive without a limit."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

import pytest

from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import AttemptId, State
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import field_limits, messages
from torchft_x.rpc.codec.generic import Codec, OneOf
from torchft_x.rpc.proto import torchft_x_pb2 as pb


def kind(**fields: Any) -> type:
    return make_dataclass("Kind", list(fields.items()), frozen=True)


@pytest.mark.parametrize(
    ("value", "missing"),
    [(kind(step=int, committed_in=int, torn=bool), "torn"), (kind(step=int), "committed_in")],
)
def test_a_field_that_only_the_message_or_the_dataclass_has_is_an_error(value: type, missing: str) -> None:
    with pytest.raises(TypeError, match=f"{missing}: not in both Kind and message State"):
        Codec(pb.State, value)


def test_a_field_of_the_message_may_be_left_apart() -> None:
    assert Codec(pb.State, kind(step=int), apart=["committed_in"]).encode(State(3, 4)) == pb.State(step=3)


def test_a_list_or_bytes_without_a_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(field_limits.LIMITS, "lost")
    with pytest.raises(TypeError, match="lost of Revoked has no limit"):
        Codec(pb.Revoked, kind(quorum_id=int, lost=tuple, reason=str, left=bool))
    with pytest.raises(TypeError, match="quorum of Down has no limit"):
        Codec(pb.Down, kind(quorum=bytes), apart=[f.name for f in pb.Down.DESCRIPTOR.fields if f.name != "quorum"])


@pytest.mark.parametrize(
    ("hostile", "sentence"),
    [
        (pb.Progress(step=-1), "Progress.step is -1, it must lie between"),
        (pb.Progress(step_seconds=-0.5), "Progress.step_seconds is -0.5, it must be a number of seconds"),
        (pb.Leave(lingers="x" * 4097), "lingers has 4097 characters"),
    ],
)
def test_a_single_value_has_the_limit_of_its_kind(hostile: pb.Progress | pb.Leave, sentence: str) -> None:
    up = pb.Up(progress=hostile) if isinstance(hostile, pb.Progress) else pb.Up(leave=hostile)
    with pytest.raises(RefusedError, match=sentence):
        messages.up_to_event(7, up)


def test_a_nested_value_needs_a_codec_of_its_own() -> None:
    with pytest.raises(KeyError, match=r"torchft_x\.AttemptId"):
        Codec(pb.MemberEntry, kind(replica_id=str, attempt_id=State, boot_id=str, runs_on=bool, early=bool))


def test_what_only_the_value_has_is_given() -> None:
    codec = Codec(pb.Progress, lm.Progress)
    sent = lm.Progress(7, 1, 2, 3, 0.5)
    assert codec.decode(codec.encode(sent), session=7) == sent

    @dataclass(frozen=True)
    class SignOfLife:
        session: int
        step: int
        committed_in: int
        node: int = 7

    heard = Codec(pb.State, SignOfLife)
    assert heard.decode(pb.State(step=1, committed_in=2), session=3) == SignOfLife(3, 1, 2)
    with pytest.raises(TypeError, match="session"):
        heard.decode(pb.State())


def test_bytes_that_are_no_message_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="The base is not a State message"):
        messages.STATE.read(b"\xff", "base")


def test_an_envelope_knows_what_is_in_it() -> None:
    down = OneOf(pb.Down, fenced=Codec(pb.Fenced, lm.Fence))
    assert down.encode(lm.Fence("b")) == pb.Down(fenced=pb.Fenced(by="b"))
    assert down.decode(pb.Down(fenced=pb.Fenced(by="b"))) == lm.Fence("b")
    assert down.decode(pb.Down(pong=pb.Ping())) is None
    with pytest.raises(KeyError):
        down.encode(AttemptId())
