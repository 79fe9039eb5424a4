"""State between processes through a folder that both reach."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.transfer.conformance import WAIT, Pair, TransportConformance
from tests.util import scaled, wait_for
from torchft_x.errors import TransferError
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.storage import FsspecTransport


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"file": str(tmp_path / "a run"), "memory": f"memory://{uuid.uuid4().hex}"}[str(request.param)]


@pytest.fixture
def pair(url: str) -> Iterator[Pair]:
    both: Pair = (FsspecTransport(url, WAIT, token="secret"), FsspecTransport(url, WAIT, token="secret"))
    yield both
    for transport in both:
        transport.shutdown()
    assert Store(url).children() == {}  # nothing is left


class TestFsspecTransport(TransportConformance):
    def test_disallow_keeps_new_readers_waiting(self, pair: Pair) -> None:
        """... as soon as the files are gone; until then they get what was frozen."""
        source, destination = pair
        source.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
        destination.recv_checkpoint(0, source.metadata(), 5, WAIT)
        source.disallow_checkpoint()
        wait_for(lambda: source._store.children(source.metadata()) == {}, what="the removal")  # type: ignore[attr-defined]
        with pytest.raises(TransferError, match="offers nothing, not"):
            destination.recv_checkpoint(0, source.metadata(), 5, 0.2)


def offered(transport: Any, url: str) -> dict[str, Any]:
    """Its files, once an offer is among them; one that is empty yet is being written, which readers know by its HMAC."""
    wait_for(lambda: Store(url).children(transport.metadata()).get("offer.json"), what="an offer")
    return Store(url).children(transport.metadata())


def test_a_large_state_and_its_old_files(pair: Pair, url: str) -> None:
    source, destination = pair
    into = {"w": torch.zeros(3 << 20), "s": torch.zeros(3)}
    for step in range(1, 6):
        source.send_checkpoint([1], step, {"w": torch.full((3 << 20,), float(step)), "s": torch.ones(3)}, WAIT)
        destination.recv_checkpoint(0, source.metadata(), step, WAIT, into=into)
        assert into["w"].min() == into["w"].max() == step
    wait_for(lambda: len(offered(source, url)) <= 3, what="the removal of older data")


def test_a_stranger_offers_nothing(url: str) -> None:
    """Who may write there and doesn't know the token."""
    stranger: Any = FsspecTransport(url, WAIT, token="other")
    reader: Any = FsspecTransport(url, WAIT, token="secret")
    stranger.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
    offered(stranger, url)
    with pytest.raises(TransferError, match="offers nothing, not"):
        reader.recv_checkpoint(0, stranger.metadata(), 5, scaled(0.3))
    for transport in (stranger, reader):
        transport.shutdown()


@pytest.mark.parametrize("name", ["../../etc", "heal-", "heal-a/b", "", "http://x", "heal-" + "x" * 1000])
def test_a_name_that_is_none_is_not_followed(pair: Pair, name: str) -> None:
    with pytest.raises(TransferError, match="give all groups the same transport"):
        pair[1].recv_checkpoint(0, name, 5, WAIT)


def test_damage_is_noticed(pair: Pair, url: str) -> None:
    source, destination = pair
    source.send_checkpoint([1], 5, {"w": torch.ones(100_000)}, WAIT)
    offered(source, url)
    file = f"{source.metadata()}/00000001.data"
    data = bytearray(Store(url).read(file, 0, 1 << 20))
    into = {"w": torch.zeros(100_000)}
    for harm, sentence in ((data[:1000], "ends after 1000 of its bytes"), (b"x" + data[1:], "is damaged")):
        Store(url).write(file, [bytes(harm)])
        with pytest.raises(TransferError, match=sentence) as caught:
            destination.recv_checkpoint(0, source.metadata(), 5, WAIT, into=into)
        assert caught.value.torn
    Store(url).remove(file)
    with pytest.raises(TransferError, match="is not there"):
        destination.recv_checkpoint(0, source.metadata(), 5, WAIT)


@pytest.mark.parametrize(
    "change", [{"file": "../x"}, {"digests": []}, {"digests": None}, {"format": "other"}, {"step": None}, {"file": 3}], ids=str
)  # fmt: skip
def test_an_offer_that_lies(pair: Pair, url: str, change: dict[str, Any]) -> None:
    source, destination = pair
    source.send_checkpoint([1], 5, {"w": torch.ones(10)}, WAIT)
    offered(source, url)
    _, head, layout = Store(url).read(f"{source.metadata()}/offer.json", 0, 1 << 20).split(b"\n")
    rest = json.dumps({**json.loads(head), **change}).encode() + b"\n" + layout
    Store(url).write(f"{source.metadata()}/offer.json", [source._seal(rest) + b"\n" + rest])  # type: ignore[attr-defined]
    with pytest.raises(TransferError):
        destination.recv_checkpoint(0, source.metadata(), 5, scaled(0.3))


def test_files_of_an_attempt_that_was_killed_go_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_GROUP_ID", "group 1")
    monkeypatch.setenv("RANK", "3")
    url = str(tmp_path)
    killed: Any = FsspecTransport(url)
    killed.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
    offered(killed, url)
    monkeypatch.setenv("RANK", "33")
    other: Any = FsspecTransport(url)
    other.send_checkpoint([1], 5, {"w": torch.ones(3)}, WAIT)
    offered(other, url)
    monkeypatch.setenv("RANK", "3")
    again: Any = FsspecTransport(url)
    wait_for(lambda: set(Store(url).children()) == {other.metadata()}, what="the removal of the old attempt's files")
    for transport in (again, other, killed):
        transport.shutdown()


def test_a_group_heals_through_it(tmp_path: Path) -> None:
    from tests.torch.train.fakes import run_threads
    from tests.torch.train.jobs import Trainer, lighthouse, same
    from tests.torch.train.test_newcomers import together

    with lighthouse() as addr:
        first = Trainer(0, addr, seed=1, checkpoint_transport=FsspecTransport(str(tmp_path), WAIT))
        first.run_to(3)
        second = Trainer(1, addr, seed=2, checkpoint_transport=FsspecTransport(str(tmp_path), WAIT))
        both = [first, second]
        last = together(both)
        assert same(first.history[last], second.history[last])
        run_threads(2, lambda g: both[g].manager.shutdown())
    assert Store(str(tmp_path)).children() == {}
