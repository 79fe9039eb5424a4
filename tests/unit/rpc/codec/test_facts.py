"""What a group tells of itself, over the wire and back."""

from __future__ import annotations

import pytest

from torchft_x.core.messages.lighthouse import Progress
from torchft_x.errors import RefusedError
from torchft_x.observe.view.facts import COMMITTED, MOST_MOMENTS, NOTHING, Copy, Counted, Facts, Moment
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb

ALL = Facts(
    commits=7,
    drops=1,
    steps=Counted((0, 3, 4), 0.025),
    reductions=Counted((7,), 0.005),
    heals=Counted((0,) * 18 + (1,), 1e3),
    moments=(Moment(COMMITTED, 0.25, quorum=2**60, participants=3, took=0.5),),
    copy=Copy("0:x", 10**12, 2 * 10**12, 60.0),
    own_part=0.25,
)


def sent(facts: Facts) -> pb.Up:
    progress = messages.up_bytes(Progress(0, 5, 41, 2, 0.1))
    return messages.parse(pb.Up, progress + messages.facts_bytes(facts), "message")


@pytest.mark.parametrize("facts", [ALL, NOTHING])
def test_it_travels_behind_another_message(facts: Facts) -> None:
    up = sent(facts)
    assert messages.FACTS.decode(up.facts) == facts
    event = messages.up_to_event(3, up)
    assert isinstance(event, Progress)
    assert event.step == 41


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Facts(steps=Counted((1,) * 20)), "buckets has 20 entries"),
        (Facts(steps=Counted((), float("nan"))), "sum is nan"),
        (Facts(moments=(Moment(COMMITTED, 0.0),) * (MOST_MOMENTS + 1)), "moments has 33 entries"),
        (Facts(moments=(Moment("x\x1b[31m", 0.0),)), "unprintable"),
        (Facts(moments=(Moment(COMMITTED, -1.0),)), "ago_s is -1.0"),
        (Facts(copy=Copy("x" * 600, 0, 0, 0.0)), "600 characters"),
        (Facts(own_part=float("inf")), "own_part_s is inf"),
        (Facts(copy=Copy("x", -1, 0, 0.0)), "done is -1"),
    ],
)
def test_what_nobody_would_tell_is_refused(facts: Facts, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        messages.FACTS.decode(sent(facts).facts)
