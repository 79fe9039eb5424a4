"""Which hosts a request may name, who has the token, how often all may ask."""

from __future__ import annotations

import pytest

from torchft_x.rpc.lighthouse.page.guard import Budget, has_token, is_own_host

NAMES = frozenset({"node1", "node1.cluster"})


@pytest.mark.parametrize(
    "header",
    [
        "localhost", "localhost:29520", "LOCALHOST:1", "a.localhost", "127.0.0.1:29520", "[::1]:29520", "10.0.0.7",
        "node1:29520", "Node1.cluster.", "::1",
    ],
)  # fmt: skip
def test_a_host_of_ours(header: str) -> None:
    assert is_own_host(header, NAMES)


@pytest.mark.parametrize(
    "header",
    ["", ":80", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "node1.evil", "[evil]", "1.2.3", "notlocalhost"],
)  # fmt: skip
def test_a_foreign_name_may_be_made_to_lead_here(header: str) -> None:
    assert not is_own_host(header, NAMES)


def test_the_token() -> None:
    assert has_token({"authorization": "Bearer secret"}, "secret")
    assert has_token({"x-torchft-x-token": "secret", "authorization": "Bearer somebody-else-s"}, "secret")
    for header in ("", "secret", "Bearer secre", "Bearer secret ", "bearer secret", "Basic secret"):
        assert not has_token({"authorization": header}, "secret")
    for header in ("", "secre", "secret ", "Bearer secret"):
        assert not has_token({"x-torchft-x-token": header, "authorization": "Bearer secret"}, "secret")
    for headers in ({}, {"authorization": "Bearer "}, {"x-torchft-x-token": ""}):
        assert not has_token(headers, None)
    assert not has_token({}, "secret")


def test_turns_of_all_together() -> None:
    budget = Budget(10.0, 5)
    assert [budget.wait(100.0) for _ in range(5)] == [0.0] * 5
    assert budget.wait(100.0) == pytest.approx(0.1)
    assert budget.wait(100.0) == pytest.approx(0.2)
    assert budget.wait(101.0) == 0.0  # who waited has had its turn
    saved = [budget.wait(200.0) for _ in range(6)]
    assert saved == [*[0.0] * 5, pytest.approx(0.1)]  # no more than a burst
