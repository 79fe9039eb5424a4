"""Checkpoints on S3: a server of moto in this process, on loopback."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
import torch

from tests.torch.transfer.conformance import TransportConformance
from tests.torch.transfer.durable.saving import WAIT, as_rank, cut, save
from tests.torch.transfer.states import same, training_state
from torchft_x.errors import TransferError
from torchft_x.transfer.durable import writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.claim import read_claim, write_claim
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.sealed import DamagedError
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.storage import FsspecTransport

pytest.importorskip("s3fs", reason="S3 needs the package s3fs: pip install s3fs")
server = pytest.importorskip(
    "moto.server", reason="a server for S3 needs moto, flask and flask-cors: pip install -e .[dev]"
)
SECRET = "a-secret-access-key"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    before = fsspec.config.conf.get("s3")
    fsspec.config.conf["s3"] = {
        "endpoint_url": f"http://{host}:{port}", "key": "a-key-id", "secret": SECRET,
        "client_kwargs": {"region_name": "us-east-1"},
    }  # fmt: skip
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT"), timeout=WAIT).close()
    yield "s3://bucket"
    fsspec.config.conf.pop("s3")
    if before is not None:
        fsspec.config.conf["s3"] = before
    moto.stop()


def test_saves_retention_and_a_claim(bucket: str) -> None:
    store = Store(f"{bucket}/a run/1")
    assert newest(store) is None
    write_claim(store, "job", 1)
    state = training_state()
    for step in (1, 2, 3):
        last = save(store, state, step, ranks=2)
        writer.sweep(store, last, 2)
    assert sorted(store.children()) == ["job.json", "step-00000002.0-a", "step-00000003.0-a"]
    assert read_claim(Store(f"{bucket}/a run/1")) == ("job", 1, False)
    found = newest(Store(f"{bucket}/a run/1"))
    assert found == last
    assert same(Saved(store, last).load(), state)
    assert Saved(store, last).verify() > 0


def test_other_ranks_read_ranges(bucket: str) -> None:
    from torch.distributed.tensor import Shard

    store, value = Store(f"{bucket}/ranges"), torch.randn(64, 40_000)  # 10 MB
    name = save(store, {"w": value}, 1)
    for rank in range(2):
        with as_rank(rank, (2,)) as mesh:
            into = {"w": cut(torch.zeros(64, 40_000), mesh, [Shard(0)])}
            Saved(store, name).load(into)
            assert torch.equal(into["w"].to_local(), value.chunk(2)[rank])


def test_one_that_is_cut_off_and_one_that_is_not_complete(bucket: str) -> None:
    store = Store(f"{bucket}/torn")
    first = save(store, {"w": torch.ones(100_000)}, 1)
    second = save(store, {"w": torch.ones(100_000)}, 2)
    store.write(f"{second}/shard-00000.data", [store.read(f"{second}/shard-00000.data", 0, 1000)])
    with pytest.raises(DamagedError, match=r"shard-00000\.data has 1000 of 400000 bytes"):
        newest(store)
    store.remove(f"{second}/manifest.json")
    assert newest(store) == first
    store.remove(str(second))
    assert sorted(store.children()) == [str(first)]


def test_no_bucket_is_a_sentence_without_the_key(bucket: str) -> None:
    store = Store("s3://no-such-bucket/run")
    with pytest.raises(TransferError, match="no-such-bucket/run") as caught:
        save(store, {"w": torch.ones(3)}, 1)
    assert SECRET not in str(caught.value)


class TestHeal(TransportConformance):
    @pytest.fixture
    def pair(self, bucket: str) -> Iterator[Any]:
        both: Any = (
            FsspecTransport(f"{bucket}/heals", WAIT, token="t"),
            FsspecTransport(f"{bucket}/heals", WAIT, token="t"),
        )
        yield both
        for transport in both:
            transport.shutdown()
        assert Store(f"{bucket}/heals").children() == {}

    def test_disallow_keeps_new_readers_waiting(self, pair: Any) -> None:
        """tests/torch/transfer/test_storage.py has it with the time that the removal takes."""
