from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.handle import Handle, app_id, is_handle, parse


@pytest.mark.parametrize(
    ("word", "namespace", "app"),
    [
        ("kubernetes_ft://torchx/team:hsdp-1a2b3c4d", "team", "hsdp-1a2b3c4d"),
        ("kubernetes_ft://team/hsdp-1a2b3c4d", "team", "hsdp-1a2b3c4d"),
        ("kubernetes_ft:///hsdp-1a2b3c4d", None, "hsdp-1a2b3c4d"),
        ("kubernetes_ft://hsdp-1a2b3c4d", None, "hsdp-1a2b3c4d"),
    ],
)
def test_what_a_handle_names(word: str, namespace: str | None, app: str) -> None:
    assert is_handle(word)
    assert parse(word) == Handle(namespace, app)


@pytest.mark.parametrize(
    "word", ["kubernetes_ft://", "kubernetes_ft://a/", "kubernetes_ft://a/B c", "kubernetes_ft://../x/a"]
)
def test_what_names_nothing(word: str) -> None:
    with pytest.raises(ConfigError, match="names no job"):
        parse(word)


def test_the_context_that_a_job_was_submitted_with_is_in_its_handle() -> None:
    for context in ("prod", "me@cluster.example:443", "arn:aws:eks:region:1:cluster/a"):
        word = f"kubernetes_ft://torchx/{app_id('team', 'a-1', context)}"
        assert word.count("/") == 3  # what follows a further one is a role
        assert parse(word) == Handle("team", "a-1", context)
    assert app_id("team", "a-1", None) == "team:a-1"
    assert parse("kubernetes_ft://team/a-1@prod") == Handle("team", "a-1", "prod")


def test_others_are_none_of_ours() -> None:
    assert not is_handle("runs/kubernetes_ft://a")
    assert not is_handle("http://node1:29510")
