"""Functions that run without collections of cyclic garbage."""

from __future__ import annotations

import gc

import pytest

from torchft_x.transfer.format.uncollected import uncollected


@uncollected
def collects(fails: bool = False) -> bool:
    if fails:
        raise ValueError("no")
    return gc.isenabled()


def test_no_collection_meanwhile_and_again_afterwards() -> None:
    assert gc.isenabled()
    assert not collects()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"):
        collects(fails=True)
    assert gc.isenabled()


def test_who_has_turned_collections_off_keeps_them_off() -> None:
    gc.disable()
    try:
        assert not collects()
        assert not gc.isenabled()
    finally:
        gc.enable()
