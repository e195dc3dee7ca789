"""Tracing is off unless a collector is named, follows W3C's trace context, and tells no contents."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import INVALID_SPAN, StatusCode, format_trace_id

from online_agent.config.settings import TelemetrySettings, load_settings
from online_agent.telemetry import conventions, tracing
from tests.fakes.tracing import kept_spans, trace_of

CLIENTS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{CLIENTS_TRACE}-00f067aa0ba902b7-01"
COLLECTOR = TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318")
REQUEST_PATH = "online_agent.gateway.exchange"


@pytest.fixture(autouse=True)
def no_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def test_no_collector_means_no_spans_and_no_exporter() -> None:
    code = (
        f"import sys, {REQUEST_PATH}; from online_agent.telemetry import tracing;"
        "from online_agent.config.settings import load_settings;"
        "assert not tracing.setup_tracing('api', load_settings());"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.exporter')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_outside_a_traced_process_a_span_is_nothing() -> None:
    with tracing.span("work", {"a": 1}) as span:
        assert span is INVALID_SPAN
        assert tracing.traceparent() is None
        assert tracing.trace_id() is None


@pytest.mark.parametrize(
    ("variables", "telemetry", "is_wanted"),
    [
        ({}, TelemetrySettings(), False),
        ({}, COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, TelemetrySettings(), True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, TelemetrySettings(), True),
        ({"OTEL_SDK_DISABLED": "true"}, COLLECTOR, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, COLLECTOR, False),
    ],
)
def test_the_standard_variables_switch_it_on_and_off(
    variables: dict[str, str], telemetry: TelemetrySettings, is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_wanted(telemetry) is is_wanted


def test_the_settings_name_the_collector() -> None:
    settings = load_settings(telemetry={"otlp_endpoint": "http://127.0.0.1:4318", "sample_ratio": 0.25})
    assert settings.telemetry.sample_ratio == 0.25


def test_a_span_goes_on_where_another_process_left_off() -> None:
    with kept_spans() as spans:
        with tracing.span("here", parent=SAMPLED):
            handed_on = tracing.traceparent()
        assert handed_on is not None
        with tracing.span("there", parent=handed_on):
            pass
    here, there = spans.all()
    assert trace_of(here) == trace_of(there) == CLIENTS_TRACE
    assert there.parent is not None
    assert there.parent.span_id == here.context.span_id


def test_a_trace_that_its_client_does_not_keep_is_not_kept_here() -> None:
    with kept_spans() as spans, tracing.span("here", parent=f"{SAMPLED[:-2]}00"):
        assert tracing.traceparent() is None
        assert tracing.trace_id() == CLIENTS_TRACE
    assert spans.all() == []


@pytest.mark.parametrize("unreadable", ["", "nonsense", f"00-{'0' * 32}-00f067aa0ba902b7-01", SAMPLED + "-x"])
def test_an_unreadable_parent_begins_a_trace_of_its_own(unreadable: str) -> None:
    with kept_spans() as spans, tracing.span("here", parent=unreadable):
        pass
    [span] = spans.all()
    assert span.parent is None


def test_of_an_exception_only_its_type_is_told() -> None:
    with kept_spans() as spans, pytest.raises(ValueError, match="the client's secret"), tracing.span("work"):
        raise ValueError("the client's secret")
    [span] = spans.all()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}
    assert "secret" not in spans.text()


def test_a_span_of_the_past_has_its_own_beginning() -> None:
    with kept_spans() as spans:
        tracing.past_span("step", {"n": 1}, parent=SAMPLED, links=[], started_ns=5)
    [span] = spans.all()
    assert span.start_time == 5
    assert format_trace_id(span.context.trace_id) == CLIENTS_TRACE


def test_the_names_are_those_of_the_conventions() -> None:
    ours = {value for name, value in vars(conventions).items() if isinstance(value, str) and value.startswith("gen_ai")}
    theirs = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI")}
    assert ours
    assert ours <= theirs
    assert not [name for name in ours if name.endswith(("messages", "arguments", "result", "instructions"))]
