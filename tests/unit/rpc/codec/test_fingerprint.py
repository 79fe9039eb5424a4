"""What a group declares survives the wire; what exceeds a limit is refused with a sentence."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core import fingerprint as t
from torchft_x.core.fingerprint import Fingerprint, Trait
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import fingerprint
from torchft_x.rpc.proto import torchft_x_pb2 as pb

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
    assert fingerprint.TRAITS.decode(fingerprint.TRAITS.encode(declared)) == declared


def one(parts: list[str]) -> pb.Traits:
    return pb.Traits(traits=[pb.Trait(name="a", digest="1", words="w", parts=parts)])


@pytest.mark.parametrize(
    ("hostile", "sentence"),
    [
        (one(parts=["x"] * (t.MAX_ALL_PARTS + 1)), "parts of traits"),
        (one(parts=["x" * t.MAX_TEXT] * 1000), "characters in parts"),
    ],
)
def test_hostile_sums_of_sizes_are_refused(hostile: pb.Traits, sentence: str) -> None:
    """The limit of each field alone is pinned in golden.json."""
    with pytest.raises(RefusedError, match=sentence):
        fingerprint.TRAITS.decode(hostile)


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_read_but_never_breaks(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        fingerprint.TRAITS.read(data, "fingerprint")
