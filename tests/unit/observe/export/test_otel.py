"""The OpenTelemetry exporter, against a receiver of OTLP over HTTP."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from torchft_x.errors import ConfigError
from torchft_x.observe import EventLog
from torchft_x.observe.export.otel import OtelExporter

try:
    there = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
except ModuleNotFoundError:
    there = False
needs_otel = pytest.mark.skipif(
    not there, reason="no OpenTelemetry here: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
)


@contextmanager
def receiver() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """A collector: its address, and the bodies that have come by path."""
    got: dict[str, list[bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.setdefault(self.path, []).append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # how often it looks for its end
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        server.server_close()


def a_loss(log: EventLog) -> None:
    log.emit("commit", step=1, participants=2, duration=0.02, reduction=0.01)
    log.emit("member_lost", lost="1:x", reason="connection lost", quorum=7)
    log.emit("abort", quorum=7, step=2)
    log.emit("quorum", quorum=8, number=2, step=2, members=["0:x"])
    log.emit("drop", step=2, quorum=7, reason="lost")
    log.emit("commit", step=2, participants=1, duration=0.05, reduction=0.02)
    log.emit("heal_begin", source="1:x")
    log.emit("heal_end", duration=0.5)


@needs_otel
def test_metrics_and_the_span_of_a_loss_arrive() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with receiver() as (url, got):
        exporter = OtelExporter(url, interval=60.0, resource={"job": "a"})
        a_loss(EventLog(None, "trainer", group="0", rank=0))
        a_loss(EventLog(None, "trainer", group="0", rank=1))  # rank 0 speaks for its group
        exporter.close()
    metrics, values = {}, {}
    for body in got["/v1/metrics"]:
        for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            names = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            assert (names["service.name"], names["job"]) == ("torchft_x", "a")
            metrics |= {m.name: m for scope in of_resource.scope_metrics for m in scope.metrics}
    for name, metric in metrics.items():
        (point,) = (metric.sum if metric.HasField("sum") else metric.histogram).data_points
        assert [a.value.string_value for a in point.attributes] == ["0"]
        values[name] = point.as_int if metric.HasField("sum") else (point.count, round(point.sum, 6))
    assert values == {
        "torchft_x.commits": 2,
        "torchft_x.dropped_steps": 1,
        "torchft_x.losses": 1,
        "torchft_x.step.duration": (2, 0.07),
        "torchft_x.reduce.duration": (2, 0.03),
        "torchft_x.heal.duration": (1, 0.5),
    }
    spans = [
        span
        for body in got["/v1/traces"]
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(span.name for span in spans) == ["torchft_x.heal", "torchft_x.loss"]
    (loss,) = (span for span in spans if span.name == "torchft_x.loss")
    assert [event.name for event in loss.events] == ["abort", "quorum", "drop"]
    said = {a.key: a.value.string_value for a in loss.attributes}
    assert (said["torchft_x.lost"], said["torchft_x.reason"]) == ("1:x", "connection lost")
    assert loss.start_time_unix_nano <= loss.end_time_unix_nano


@needs_otel
def test_a_closed_exporter_hears_nothing() -> None:
    with receiver() as (url, got):
        exporter = OtelExporter(url, interval=60.0)
        exporter.close()
        a_loss(EventLog(None, "trainer", group="0", rank=0))
    assert "/v1/traces" not in got


def test_without_it_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk "):
        OtelExporter("http://127.0.0.1:1")
