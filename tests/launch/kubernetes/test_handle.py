from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.handle import Handle, is_handle, parse


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


def test_others_are_none_of_ours() -> None:
    assert not is_handle("runs/kubernetes_ft://a")
    assert not is_handle("http://node1:29510")
