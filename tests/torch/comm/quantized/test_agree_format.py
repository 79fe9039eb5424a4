"""What members make of each other's formats: over real gloo, and who must end."""

from __future__ import annotations

import pytest
import torch

from tests.torch.train.fakes import gloo_groups, run_threads
from torchft_x.comm.quantized.agree_format import agree
from torchft_x.comm.quantized.format import FORMATS
from torchft_x.errors import CollectiveError, ConfigError


def heard(*members: str) -> list[str]:
    """What each is told; a name in brackets is of one that heals."""
    groups = gloo_groups(len(members))

    def body(r: int) -> str:
        name = members[r].strip("()")
        try:
            agree(groups[r], FORMATS[name], torch.device("cpu"), contributes=members[r] == name)
        except (ConfigError, CollectiveError) as e:
            return f"{type(e).__name__}: {e}"
        return ""

    return run_threads(len(members), body)


def test_members_that_agree_are_told_nothing() -> None:
    assert heard("int4", "int4", "(int4)") == [""] * 3
    assert heard("int8") == [""]


@pytest.mark.parametrize(
    ("members", "kinds"),
    [
        (("int8", "int4", "int8"), "col Con col"),
        (("int8", "int4", "int4"), "col Con Con"),
        (("(int4)", "int8", "int8"), "Con col col"),  # a newcomer ends nobody but itself, whatever its rank
        (("(fp8)", "(int8)"), "col Con"),
    ],
)
def test_who_reduces_otherwise_than_the_first_that_contributes_must_end(members: tuple[str, ...], kinds: str) -> None:
    told = heard(*members)
    assert [t[:3] for t in told] == [{"col": "Col", "Con": "Con"}[k] for k in kinds.split()]
    right = next((m for m in members if "(" not in m), members[0]).strip("()")
    for t in told:
        if t.startswith("Con"):
            assert f"in '{right}'; use one format" in t
        else:
            assert t.startswith(f"CollectiveError: this group quantises in '{right}', and rank")
