"""Metrics and spans of failures over OpenTelemetry's protocol; the extra `otel` has its packages.

    from torchft_x.observe.export.otel import OtelExporter

    exporter = OtelExporter()  # OTEL_EXPORTER_OTLP_ENDPOINT names the collector
    ...
    exporter.close()

An exporter made in a training script exports the events of that process; the attribute ``torchft_x.group``
distinguishes the groups. A collector that is away does not slow the training: data that can't be delivered is dropped.
"""

from __future__ import annotations

import threading
from typing import Any

from torchft_x.errors import ConfigError
from torchft_x.observe.events import subscribe

_GET = "OpenTelemetry is not installed: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_PAST = frozenset(["t", "mono", "pid", "event", "role"])


class OtelExporter:
    """Exporter of this process's events, until it is closed. Thread-safe.

    `endpoint`: base URL of an OTLP/HTTP collector (``http://host:4318``); None: taken from the environment.
    `interval`: seconds between two exports of the metrics. `resource`: further attributes of all exported data.

    Metrics: counters ``torchft_x.commits``, ``torchft_x.dropped_steps``, ``torchft_x.losses``; histograms
    ``torchft_x.step.duration``, ``torchft_x.reduce.duration``, ``torchft_x.heal.duration`` (s). Spans:
    ``torchft_x.loss`` begins when this process knows that another group is gone and ends at its next commit, with an
    event for each phase between; and ``torchft_x.heal``.

    Raises `ConfigError` if OpenTelemetry is not installed.
    """

    def __init__(
        self, endpoint: str | None = None, *, interval: float = 10.0, resource: dict[str, str] | None = None
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as e:
            raise ConfigError(f"{_GET} ({e}).") from None
        to = endpoint.rstrip("/") if endpoint is not None else None
        metrics = OTLPMetricExporter(endpoint=f"{to}/v1/metrics") if to else OTLPMetricExporter()
        spans = OTLPSpanExporter(endpoint=f"{to}/v1/traces") if to else OTLPSpanExporter()
        about = Resource.create({"service.name": "torchft_x", **(resource or {})})
        reader = PeriodicExportingMetricReader(metrics, export_interval_millis=interval * 1000)
        # Own providers leave the script's own OpenTelemetry set-up as it is.
        self._meters = MeterProvider(resource=about, metric_readers=[reader])
        self._tracers = TracerProvider(resource=about)
        self._tracers.add_span_processor(BatchSpanProcessor(spans))
        meter = self._meters.get_meter("torchft_x")
        self._tracer = self._tracers.get_tracer("torchft_x")
        self._counters = {
            "commit": meter.create_counter("torchft_x.commits", description="Steps that this group committed"),
            "drop": meter.create_counter("torchft_x.dropped_steps", description="Steps that it did not commit"),
            "member_lost": meter.create_counter("torchft_x.losses", description="Other groups that it lost"),
        }
        self._durations = {
            ("commit", "duration"): meter.create_histogram("torchft_x.step.duration", unit="s"),
            ("commit", "reduction"): meter.create_histogram("torchft_x.reduce.duration", unit="s"),
            ("heal_end", "duration"): meter.create_histogram("torchft_x.heal.duration", unit="s"),
        }
        self._lock = threading.Lock()  # guards the spans, because events come on any thread
        self._losses: dict[str, Any] = {}  # open spans of losses by replica id, until the next commit
        self._heal: Any = None  # open span of the present heal
        self._end = subscribe(self._hear)

    def close(self, timeout: float = 5.0) -> None:
        """Deliver the collected data, within `timeout` seconds each for metrics and spans, and end."""
        self._end()
        with self._lock:
            for span in [*self._losses.values(), self._heal]:
                if span is not None:
                    span.end()
            self._losses.clear()
            self._heal = None
        self._tracers.force_flush(int(timeout * 1000))
        self._tracers.shutdown()
        self._meters.shutdown(timeout_millis=timeout * 1000)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("rank", 0) != 0 or event.get("left"):  # a graceful leave is no failure
            return
        name = event["event"]
        who = {"torchft_x.group": str(event.get("group", ""))}
        if name in self._counters:
            self._counters[name].add(1, who)
        for (of, field), histogram in self._durations.items():
            if of == name and event.get(field) is not None:
                histogram.record(float(event[field]), who)
        with self._lock:
            self._trace(name, event, who, int(event["t"] * 1e9))

    def _trace(self, name: str, event: dict[str, Any], who: dict[str, str], at: int) -> None:
        """Start, extend or end spans for an event. `at`: unix nanoseconds."""
        if name == "member_lost":
            lost = str(event.get("lost", ""))
            told = {**who, "torchft_x.lost": lost, "torchft_x.reason": str(event.get("reason", ""))}
            if lost not in self._losses:
                self._losses[lost] = self._tracer.start_span("torchft_x.loss", start_time=at, attributes=told)
        elif name == "heal_begin":
            source = {**who, "torchft_x.source": str(event.get("source", ""))}
            self._heal = self._tracer.start_span("torchft_x.heal", start_time=at, attributes=source)
        elif name in ("heal_end", "error") and self._heal is not None:
            self._heal.end(end_time=at)
            self._heal = None
        elif name in ("abort", "quorum", "configure", "redo", "drop", "adopt"):
            details = {k: v for k, v in event.items() if k not in _PAST and isinstance(v, (str, int, float))}
            for span in self._losses.values():
                span.add_event(name, details, timestamp=at)
        elif name == "commit" and self._losses:
            for span in self._losses.values():
                span.set_attribute("torchft_x.step", int(event.get("step", 0)))
                span.end(end_time=at)
            self._losses.clear()
