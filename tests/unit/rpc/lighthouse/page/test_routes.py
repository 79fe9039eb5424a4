"""What is where, what a browser may do with it, and who may order something."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.unit.rpc.support import group
from tests.util import wait_for
from torchft_x.core.types import AttemptId
from torchft_x.observe import template
from torchft_x.rpc.lighthouse.page.routes import has_token, is_own_host

HOSTILE = "<img src=x onerror=alert(1)>'\"&amp;"


def test_the_page_runs_nothing_but_what_is_in_it(page: Served) -> None:
    answer = page.ask("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"script-src 'sha256-[\w+/=]+';", policy)) == 1
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_asks_nobody_else() -> None:
    body = template.live()[0].decode()
    assert re.findall(r"https?://(?!www\.w3\.org)[^\s'\"]+", body) == []
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "cookie", "style="):
        assert unsafe not in body


def test_status_json(page: Served) -> None:
    answer = page.ask("/status.json?x=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json["address"], answer.json["page"]) == (page.address, page.page.url)
    assert answer.json["orders"] is True


def test_probes_and_unknown_paths(page: Served) -> None:
    assert page.ask("/healthz").body == b"ok\n"
    assert page.ask("/readyz").body == b"ok\n"
    assert page.ask("/nothing").status == 404
    assert (page.ask("/", "POST").status, page.ask("/kill").status) == (405, 405)


def test_who_lost_the_lease_is_not_ready(page: Served) -> None:
    with served() as other:
        other.shell.serves = lambda: False  # type: ignore[method-assign]
        assert (other.ask("/readyz").status, other.ask("/healthz").status) == (503, 200)
    assert page.ask("/readyz").status == 200


@pytest.mark.parametrize("path", ["/", "/status.json", "/kill"])
def test_a_foreign_host_is_turned_away(page: Served, path: str) -> None:
    answer = page.ask(path, Host="evil.example:80")
    assert answer.status == 421
    assert b"localhost" in answer.body


def test_orders_need_the_token(page: Served) -> None:
    for token in (None, "", "wrong"):
        answer = page.order("kill", "0", token)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert page.order("kill", "0").json == {"error": "There is no group '0' here."}


def test_without_a_token_there_are_no_orders() -> None:
    with served(token=None) as open_:
        assert open_.ask("/status.json").json["orders"] is False
        for token in (None, "", "None", "anything"):
            answer = open_.order("kill", "0", token)
            assert answer.status == 403
            assert "--token_file" in answer.json["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"group": 1}', b"[" * 4000, b"\xff\xfe", b'{"group": ""}'])
def test_a_body_that_is_none(page: Served, body: bytes) -> None:
    answer = page.ask("/drain", "POST", body, Authorization=f"Bearer {TOKEN}")
    assert answer.status in (400, 409)
    assert answer.json["error"]


def test_a_hostile_name_is_text(page: Served) -> None:
    with group(f"{HOSTILE}:1", page.address, token=TOKEN, attempt_id=AttemptId()):
        wait_for(lambda: HOSTILE in page.groups(), 5.0, "the group")
        assert page.ask("/status.json").headers["content-type"] == "application/json"
        assert json.loads(page.ask("/status.json").body)["groups"][0]["group"] == HOSTILE
        assert HOSTILE in page.order("resume", HOSTILE).json["error"]
    assert page.order("kill", "a\x1b[31m\nb").status == 409


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
