"""OpenTelemetry traces: off unless a collector is named; then one trace leads from a request to the step it trained.

Invariants
- Without a collector no exporter is imported, and no span, attribute or header is made.
- No text of a prompt, an answer, a tool call or an observation is an attribute; of an exception only its type is told.
- A trace that a client decided not to keep is not kept here either, and leaves nothing in the database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from online_agent.config.settings import Settings, TelemetrySettings
from online_agent.telemetry.conventions import ERROR_TYPE

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SCOPE = "online_agent"
EXPORT_TIMEOUT_S = 3.0
"""How long a collector may take over one batch. A process that ends has four of them to send at most."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_TRACEPARENT = "traceparent"

_propagator = TraceContextTextMapPropagator()
_provider: TracerProvider | None = None


def setup_tracing(process: str, settings: Settings) -> bool:
    """Whether spans of this process go to a collector from here on. Call once in each process, after a fork.

    ``process`` becomes the end of the service's name, unless ``OTEL_SERVICE_NAME`` gives it whole.
    """
    if not is_wanted(settings.telemetry):
        return False
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    telemetry = settings.telemetry
    is_named = any(os.environ.get(name) for name in _ENDPOINTS)
    exporter = OTLPSpanExporter(
        endpoint=None if is_named else f"{telemetry.otlp_endpoint.rstrip('/')}/v1/traces",
        timeout=None if any(os.environ.get(name) for name in _TIMEOUTS) else EXPORT_TIMEOUT_S,
    )
    provider = SdkTracerProvider(
        resource=_resource(process, telemetry),
        sampler=None
        if os.environ.get("OTEL_TRACES_SAMPLER")
        else ParentBased(TraceIdRatioBased(telemetry.sample_ratio)),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use_provider(provider)
    return True


def is_wanted(telemetry: TelemetrySettings) -> bool:
    """Whether a collector is named, by the settings or by a standard variable, and tracing is not switched off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(telemetry.otlp_endpoint) or any(os.environ.get(name) for name in _ENDPOINTS)


def use_provider(provider: TracerProvider | None) -> None:
    """Spans are made by ``provider`` from here on; by nobody with None."""
    global _provider
    _provider = provider


def provider() -> TracerProvider | None:
    """Who makes the spans of this process; None when tracing is off."""
    return _provider


def is_on() -> bool:
    return _provider is not None


def shut_down_tracing() -> None:
    """What has ended is exported, or given up batch by batch; no span is made any more."""
    global _provider
    ending, _provider = _provider, None
    shutdown = getattr(ending, "shutdown", None)
    if shutdown is not None:
        shutdown()


@contextmanager
def span(
    name: str,
    attributes: Mapping[str, AttributeValue] | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: str | None = None,
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    """The current span inside the block, a child of ``parent`` (a traceparent) or else of the one outside.

    An exception that leaves the block marks it failed, with the type of the exception and nothing of its text.
    """
    if _provider is None:
        yield INVALID_SPAN
        return
    started = _provider.get_tracer(SCOPE).start_as_current_span(
        name,
        context=None if parent is None else context_of(parent),
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    )
    with started as made:
        try:
            yield made
        except BaseException as error:
            failed(made, type(error).__name__)
            raise


def past_span(
    name: str,
    attributes: Mapping[str, AttributeValue],
    *,
    parent: str,
    links: Sequence[Link],
    started_ns: int,
) -> None:
    """A span below ``parent`` that began at ``started_ns`` (unix time in ns) and ends now."""
    if _provider is not None:
        _provider.get_tracer(SCOPE).start_span(
            name, context=context_of(parent), attributes=attributes, links=links, start_time=started_ns
        ).end()


def failed(of: Span, error_type: str) -> None:
    """The span stands for something that did not work."""
    of.set_attribute(ERROR_TYPE, error_type)
    of.set_status(StatusCode.ERROR)


def set_on_current(name: str, value: AttributeValue) -> None:
    """The current span, if there is one, has the attribute."""
    if _provider is not None:
        trace.get_current_span().set_attribute(name, value)


def traceparent() -> str | None:
    """The current span in W3C form, to go on from elsewhere; None when there is none or it is not kept."""
    if _provider is None:
        return None
    carrier: dict[str, str] = {}
    if trace.get_current_span().get_span_context().trace_flags.sampled:
        _propagator.inject(carrier)
    return carrier.get(_TRACEPARENT)


def context_of(parent: str) -> Context:
    """The context in which a span is a child of the one that ``traceparent`` gave; a root's if it cannot be read."""
    return _propagator.extract({_TRACEPARENT: parent}, context=Context())


def span_context_of(parent: str) -> SpanContext:
    return trace.get_current_span(context_of(parent)).get_span_context()


def trace_id() -> str | None:
    """32 hex digits of the trace under way in this context."""
    current = trace.get_current_span().get_span_context()
    return trace.format_trace_id(current.trace_id) if current.is_valid else None


def _resource(process: str, telemetry: TelemetrySettings) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_NAMESPACE, Resource

    named: dict[str, AttributeValue] = {
        SERVICE_NAMESPACE: telemetry.service_name,
        SERVICE_INSTANCE_ID: f"{process}-{os.getpid()}",
    }
    if not os.environ.get("OTEL_SERVICE_NAME"):
        named[SERVICE_NAME] = f"{telemetry.service_name}-{process}"
    return Resource.create(named)
