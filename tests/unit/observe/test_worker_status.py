"""The bytes a supervisor reads while the worker writes them: pure."""

from __future__ import annotations

import random
import struct

import pytest

from torchft_x.core.commit.step import StepPhase
from torchft_x.observe.worker_status import (
    MOMENT,
    PHASES,
    SIZE,
    Moment,
    encode_story,
    newest,
    place_of_moment,
    same,
    status_of,
    story,
)

HERE = Moment(12, 2, 100.0, 0.5, 0.0, 11, 7, 3, False)


def memory(*moments: tuple[int, Moment], stories: tuple[tuple[int, dict[str, object]], ...] = ()) -> bytearray:
    data = bytearray(SIZE)
    for number, moment in moments:
        MOMENT.pack_into(data, place_of_moment(number), number, *moment, number)
    for number, values in stories:
        at, text = encode_story(number, values)
        data[at : at + len(text)] = text
    return data


def test_phases_are_those_of_a_step() -> None:
    assert tuple(phase.value for phase in StepPhase) == PHASES


def test_the_newest_moment_counts() -> None:
    assert newest(memory((4, HERE), (5, HERE._replace(step=13)))) == (5, HERE._replace(step=13))
    assert newest(memory((6, HERE), (5, HERE._replace(step=13)))) == (6, HERE)
    assert newest(memory()) is None
    assert newest(b"") is None


@pytest.mark.parametrize("stored", [0, 1, 8, 30, MOMENT.size - 9, MOMENT.size - 8])
def test_a_moment_that_is_half_stored_leaves_the_one_before(stored: int) -> None:
    data, later = memory((4, HERE), (5, HERE._replace(step=13))), memory((6, HERE._replace(step=14)))
    data[:stored] = later[:stored]
    assert newest(data) == (5, HERE._replace(step=13))
    assert newest(data[:128] + bytes(SIZE - 128)) == ((4, HERE) if stored == 0 else None)


@pytest.mark.parametrize("moment", [HERE._replace(phase=4), HERE._replace(since=float("nan"))])
def test_values_that_make_no_sense_are_none(moment: Moment) -> None:
    assert newest(memory((4, moment))) is None


def test_a_second_look_must_show_the_same_bytes() -> None:
    first = memory((4, HERE), (5, HERE))
    read = newest(first)
    assert read is not None
    assert same(read, first)
    assert same(read, memory((6, HERE), (5, HERE)))  # the other place has been written since
    assert not same(read, memory((7, HERE)))
    assert not same(read, memory((5, HERE._replace(step=13))))


def test_the_newest_story_counts_and_a_torn_one_does_not() -> None:
    data = memory(stories=((1, {"error": "old"}), (2, {"error": "new"})))
    assert story(data)["error"] == "new"
    at, text = encode_story(2, {"error": "new"})
    data[at + text.index(b"new")] ^= 1  # still JSON
    assert story(data)["error"] == "old"
    assert story(bytes(SIZE)) == {}


def test_no_length_is_believed() -> None:
    at, text = encode_story(2, {"error": "x"})
    for length in (1 << 31, SIZE, len(text) + 5):
        data = memory(stories=((1, {"error": "old"}),))
        data[at : at + len(text)] = text
        struct.pack_into("<I", data, at + 8, length)
        assert story(data)["error"] == "old"


def test_a_story_fits_whatever_it_holds() -> None:
    many = [f"group-{n}:{'f' * 32}" for n in range(10_000)]
    told = story(memory(stories=((1, {"error": "e" * 100_000, "members": many, "rank": 3}),)))
    assert told["rank"] == 3
    assert told["members"] == many[: len(told["members"])]
    assert len(told["members"]) >= 100
    assert len(told["error"]) == 2000
    lines = ["l" * 1000] * 8
    told = story(memory(stories=((1, {"members": many, "story": lines, "error": "e"}),)))
    assert ("story" in told, len(told["members"]), told["error"]) == (False, 200, "e")  # who is a member matters more
    assert story(memory(stories=((1, {"members": many[:9], "story": lines}),)))["story"] == lines
    long = story(memory(stories=((1, {"members": ["m" * 1000] * 200, "rank": 3}),)))
    assert long == {"rank": 3}
    assert story(memory(stories=((1, {"other": ["x" * 20_000]}),))) == {}


def test_any_bytes_are_read_without_an_error() -> None:
    rng = random.Random(7)
    whole = memory((4, HERE), (5, HERE), stories=((1, {"error": "a"}), (2, {"error": "b"})))
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 40)):
            data[rng.randrange(rng.choice((256, 400, SIZE)))] = rng.randrange(256)
        data = data[: rng.choice((SIZE, rng.randrange(SIZE)))]
        newest(data)
        story(data)


def test_a_status_is_told_as_of_now() -> None:
    told = status_of(HERE._replace(pause_ends=104.0), {"rank": 1}, 103.5, 9.0)
    assert (told["rank"], told["step"], told["phase"], told["step_seconds"]) == (1, 12, "running", 3.5)
    assert (told["paused"], told["t"], told["leaving"]) == (True, 9.0, False)
    assert not status_of(HERE._replace(pause_ends=103.0), {}, 103.5, 9.0)["paused"]
