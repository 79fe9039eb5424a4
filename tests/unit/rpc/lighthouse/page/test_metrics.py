"""What Prometheus reads."""

from __future__ import annotations

import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.rpc.lighthouse.page.served import TOKEN, Served, served
from tests.unit.rpc.support import Asking, group
from tests.util import wait_for
from torchft_x.observe.facts_collector import FactsCollector


def samples(page: Served) -> dict[tuple[str, frozenset[str]], float]:
    text = page.ask("/metrics").body.decode()
    return {
        (s.name, frozenset(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def test_without_prometheus_client_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchft_x.rpc.lighthouse.page.metrics", raising=False)
    monkeypatch.delattr("torchft_x.rpc.lighthouse.page.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with served() as page:
        answer = page.ask("/metrics")
    assert (answer.status, b"pip install prometheus-client" in answer.body) == (501, True)


def test_counters_gauges_and_histograms() -> None:
    none: frozenset[str] = frozenset()
    with served() as page:
        before = samples(page)
        assert (before["torchft_x_quorums_total", none], before["torchft_x_quorum_members", none]) == (0.0, 0.0)
        assert before["torchft_x_losses_total", frozenset({"exited"})] == 0.0  # a series that is there can be watched
        with group("0:x", page.address, token=TOKEN) as a:
            Asking(a).result()
            wait_for(lambda: samples(page)["torchft_x_quorum_members", none] == 1.0, 5.0, "a fresh overview")
            now = samples(page)
            assert now["torchft_x_quorums_total", none] == 1.0
            assert now["torchft_x_joins_total", none] == 1.0
            assert now["torchft_x_groups", frozenset({"trains"})] == 1.0
            assert now["torchft_x_quorum_wait_seconds_count", none] == 1.0
            assert now["torchft_x_quorum_wait_seconds_bucket", frozenset({"+Inf"})] == 1.0
            assert now["torchft_x_step_seconds_count", none] == 0.0
        text = page.ask("/metrics")
        assert text.headers["content-type"].startswith("text/plain; version=")


def test_what_a_group_tells_of_itself() -> None:
    none: frozenset[str] = frozenset()
    telling = FactsCollector(lambda: (3, 10))
    with served() as page, group("0:x", page.address, token=TOKEN) as a:
        a.report_facts(telling)
        now = time.monotonic()
        for name, fields in (
            ("commit", {"quorum": 1, "participants": 1, "duration": 0.03, "reduction": 0.004}),
            ("drop", {}),
            ("heal_begin", {"source": "1:x"}),
        ):
            telling.receive({"event": name, "mono": now, **fields})
        wait_for(lambda: samples(page)["torchft_x_commits_total", none] == 1.0, 10.0, "what it tells")
        found = samples(page)
        assert found["torchft_x_dropped_steps_total", none] == 1.0
        assert found["torchft_x_step_seconds_bucket", frozenset({"0.05"})] == 1.0
        assert found["torchft_x_step_seconds_bucket", frozenset({"0.025"})] == 0.0
        assert found["torchft_x_reduce_seconds_sum", none] == 0.004
        telling.receive({"event": "heal_end", "mono": now, "duration": 2.0})
        wait_for(lambda: samples(page)["torchft_x_heal_seconds_count", none] == 1.0, 10.0, "its heal")
