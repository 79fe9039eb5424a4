"""Which lighthouse a group connects to."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.errors import AddressError
from torchft_x.net import Address
from torchft_x.rpc.transport import resolve
from torchft_x.rpc.transport.resolve import find_lighthouses, moved_to


def test_all_in_their_order_whether_they_answer_or_not() -> None:
    assert [a.port for a in find_lighthouses("http://127.0.0.1:9")] == [9]
    assert [a.port for a in find_lighthouses("127.0.0.1:2, 127.0.0.1:9,127.0.0.1:1")] == [2, 9, 1]
    with pytest.raises(AddressError, match=r"http://127.0.0.1:1 is in it twice"):
        find_lighthouses("127.0.0.1:1, http://127.0.0.1:1")
    with pytest.raises(AddressError, match=r"names 17 addresses; at most 16"):
        find_lighthouses(",".join(f"127.0.0.1:{i}" for i in range(1, 18)))


def test_one_known_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of one of them may be gone."""
    assert len(find_lighthouses("no.such.host.invalid:1,127.0.0.1:1")) == 2
    monkeypatch.setattr(resolve, "RESOLVE_TIMEOUT", 0.0)
    with pytest.raises(AddressError, match=r"no.such.host.invalid.*can't be resolved"):
        find_lighthouses("no.such.host.invalid:1,other.invalid:1")
    with pytest.raises(AddressError, match="TORCHFT_LIGHTHOUSE"):
        find_lighthouses("127.0.0.1:1,nowhere")


def test_where_a_lighthouse_has_moved_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "lighthouse"
    assert moved_to(str(file)) == ()
    file.write_text("http://n2:29510\n")
    assert moved_to(str(file)) == (Address("n2", 29510),)
    file.write_text("no address at all")
    assert moved_to(str(file)) == ()
    file.write_text("http://n3:29510\n")
    file.chmod(0o666)  # T1: a stranger's address got the token
    for _ in range(3):
        assert moved_to(str(file)) == ()
    (said,) = caplog.messages
    assert f"chmod go-w {file}" in said
