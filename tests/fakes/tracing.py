"""Spans that stay in memory, and a collector that takes them over the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id

from online_agent.telemetry import tracing


class Spans:
    """What has ended, in order of its end."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def named(self, name: str) -> ReadableSpan:
        """The one span of that name."""
        [span] = [span for span in self.all() if span.name == name]
        return span

    def text(self) -> str:
        """Everything that would leave the machine."""
        return "\n".join(span.to_json() for span in self.all())


@contextmanager
def kept_spans() -> Iterator[Spans]:
    """Tracing is on inside the block, and what ends is kept here."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use_provider(provider)
    try:
        yield Spans(exporter)
    finally:
        tracing.use_provider(None)


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


class Collector:
    """An OTLP/HTTP endpoint on a real port."""

    def __init__(self) -> None:
        self.received: list[tuple[str, WireSpan]] = []
        """The service's name and the span."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces", self.path
                collector._take(ExportTraceServiceRequest.FromString(content))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def named(self, name: str, trace_id: str) -> list[tuple[str, WireSpan]]:
        """Service and span of all of that name in the trace."""
        return [
            (service, span)
            for service, span in list(self.received)
            if span.name == name and span.trace_id.hex() == trace_id
        ]

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            named = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.received.extend((named["service.name"], span) for span in of_scope.spans)
