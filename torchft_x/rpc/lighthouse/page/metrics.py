"""The metrics of `/metrics`, through prometheus_client. Each request reads them from the overview and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from torchft_x.core.lighthouse.waiting import CAUSES
from torchft_x.observe.view.activity import DOES
from torchft_x.observe.view.facts import Durations
from torchft_x.rpc.lighthouse.page.recorder import Recorder

KIND = CONTENT_TYPE_LATEST

_COUNTERS = {
    "quorums": ("torchft_x_quorums", "Quorums issued, also of the same members as before."),
    "regroupings": ("torchft_x_regroupings", "Quorums of other members than the one before, or after a failed step."),
    "joins": ("torchft_x_joins", "Members that asked for their first quorum."),
    "refusals": ("torchft_x_refusals", "Members that were turned away."),
    "new_lineages": ("torchft_x_new_lineages", "Times that nobody held the newest state any more."),
    "undone_steps": ("torchft_x_undone_steps", "Committed steps that were lost with all groups that held them."),
    "restarts": ("torchft_x_restarts", "Attempts after the first, of all groups."),
    "commits": ("torchft_x_commits", "Commits of all groups: a step of four groups is four."),
    "dropped_steps": (
        "torchft_x_dropped_steps",
        "Steps that a group did not commit and computed again, of all groups.",
    ),
}


def text(recorder: Recorder) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Metrics(recorder))
    return bytes(generate_latest(registry))


class _Metrics(Collector):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        value, history = self._recorder.value(), self._recorder.history
        yield InfoMetricFamily("torchft_x_lighthouse", "The lighthouse.", value={"version": value["version"]})
        yield from _gauges(value)
        for key, (name, words) in _COUNTERS.items():
            yield CounterMetricFamily(name, words, value=value["counts"][key])
        losses = CounterMetricFamily("torchft_x_losses", "Members of the quorum that were lost.", labels=["cause"])
        for cause in CAUSES:
            losses.add_metric([cause], value["counts"]["losses"].get(cause, 0))
        yield losses
        yield _histogram("torchft_x_quorum_wait_seconds", "First request -> quorum.", history.wait)
        yield _histogram("torchft_x_recovery_seconds", "A member is lost -> the next quorum.", history.recovery)
        yield _histogram("torchft_x_rejoin_seconds", "A member is lost -> its group is in a quorum.", history.rejoin)
        record_moments = self._recorder.tally
        yield _histogram(
            "torchft_x_step_seconds", "Begin of a step -> its commit, of all groups.", record_moments.steps
        )
        yield _histogram(
            "torchft_x_reduce_seconds", "First reduction of a step -> all have ended.", record_moments.reductions
        )
        yield _histogram("torchft_x_heal_seconds", "Copies of the state from another group.", record_moments.heals)


def _gauges(value: dict[str, Any]) -> Iterator[Metric]:
    quorum, waiting = value["quorum"] or {}, value["waiting"] or {}
    yield GaugeMetricFamily("torchft_x_step", "Newest committed step that is known.", value=value["step"])
    yield GaugeMetricFamily("torchft_x_steps_per_second", "Of the last half minute.", value=value["step_rate"] or 0.0)
    yield GaugeMetricFamily("torchft_x_quorum_members", "Of the present quorum.", value=quorum.get("members", 0))
    yield GaugeMetricFamily("torchft_x_quorum_age_seconds", "Of the present quorum.", value=quorum.get("age", 0.0))
    yield GaugeMetricFamily(
        "torchft_x_waiting_members", "That asked for the next one.", value=waiting.get("members", 0)
    )
    yield GaugeMetricFamily("torchft_x_waiting_seconds", "Longest wait of these.", value=waiting.get("since", 0.0))
    yield GaugeMetricFamily("torchft_x_uptime_seconds", "Of this lighthouse process.", value=value["uptime"])
    groups = GaugeMetricFamily("torchft_x_groups", "Groups by what they do now.", labels=["does"])
    counted = Counter(group["does"] for group in value["groups"])
    for does in DOES:
        groups.add_metric([does], counted[does])
    yield groups


def _histogram(name: str, words: str, durations: Durations) -> Metric:
    return HistogramMetricFamily(name, words, buckets=durations.buckets(), sum_value=durations.sum)
