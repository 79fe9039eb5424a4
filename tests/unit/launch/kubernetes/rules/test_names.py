from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.pod import merge

ROLES = {"lighthouse": 1, "trainer": 100}


@settings(max_examples=30)
@given(st.text(alphabet="abyzAZ0189-_. /:é中", max_size=90))  # all of Unicode is a table that is made first
def test_any_name_comes_to_one_that_kubernetes_takes(name: str) -> None:
    app = names.app_id(name, "1a2b3c4d", ROLES)
    assert app.endswith("-1a2b3c4d")
    for made in (app, names.service(app), names.part(app, "lighthouse", 0), names.part(app, "trainer", 9999)):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", made), made


def test_a_role_without_a_name_or_with_too_long_a_one_is_told() -> None:
    with pytest.raises(ConfigError, match="no letter or digit"):
        names.app_id("a", "1", {"__": 1})
    with pytest.raises(ConfigError, match="too long for Kubernetes"):
        names.app_id("a", "1", {"evaluator-of-the-very-newest-and-best-model-we-have": 1})


def test_an_overlay_is_merged_by_the_keys_of_kubernetes() -> None:
    base = {
        "a": 1,
        "b": {"c": 2, "d": 3},
        "containers": [{"name": "x", "env": [{"name": "V", "value": "1"}], "image": "i"}],
    }
    source = {"fieldRef": {"fieldPath": "status.podIP"}}
    over = {
        "b": {"d": None, "e": 4},
        "containers": [{"name": "x", "env": [{"name": "V", "valueFrom": source}, {"name": "W", "value": "2"}]}],
        "tolerations": [{"key": "k"}],
    }
    assert merge(base, over) == {
        "a": 1,
        "b": {"c": 2, "e": 4},
        "containers": [
            {"name": "x", "image": "i", "env": [{"name": "V", "valueFrom": source}, {"name": "W", "value": "2"}]}
        ],
        "tolerations": [{"key": "k"}],
    }
    assert base["b"] == {"c": 2, "d": 3}
    assert merge({"containers": [{"name": "x"}]}, {"containers": [{"name": "x", "$patch": "delete"}]}) == {
        "containers": []
    }
