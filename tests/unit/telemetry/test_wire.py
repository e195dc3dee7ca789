"""What is traced arrives at a collector over OTLP/HTTP, and a trace goes on in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from online_agent.config.settings import load_settings
from online_agent.telemetry import tracing
from tests.fakes.tracing import Collector

ANOTHER_PROCESS = """
import sys, time
from pathlib import Path
from online_agent.config.settings import load_settings
from online_agent.telemetry import tracing
assert tracing.setup_tracing("learner", load_settings(data_dir=Path(sys.argv[1])))
with tracing.span("train step 1"):
    own = tracing.traceparent()
link = tracing.Link(tracing.span_context_of(own))
tracing.past_span("train step 1", {"n": 1}, parent=sys.argv[2], links=[link], started_ns=time.time_ns())
tracing.shut_down_tracing()
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with Collector().running() as running:
        yield running
        tracing.shut_down_tracing()


def test_a_trace_goes_on_in_another_process_and_both_tell_the_collector(collector: Collector, tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, telemetry={"otlp_endpoint": collector.url})
    assert tracing.setup_tracing("api", settings)
    with tracing.span("request"):
        trace_id, handed_on = tracing.trace_id(), tracing.traceparent()
    tracing.shut_down_tracing()
    assert trace_id is not None
    assert handed_on is not None
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    argv = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path), handed_on]
    subprocess.run(argv, env=environment, check=True, timeout=100)
    [(api, request)] = collector.named("request", trace_id)
    [(learner, step)] = collector.named("train step 1", trace_id)
    assert (api, learner) == ("online-agent-api", "online-agent-learner")
    assert step.parent_span_id == request.span_id
    [own] = [span for _, span in collector.received if span.trace_id != request.trace_id]
    assert [link.span_id for link in step.links] == [own.span_id]


def test_a_service_that_is_named_from_outside_keeps_that_name(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "their-agent")
    settings = load_settings(data_dir=tmp_path, telemetry={"otlp_endpoint": collector.url})
    assert tracing.setup_tracing("worker", settings)
    with tracing.span("work"):
        pass
    tracing.shut_down_tracing()
    assert [(service, span.name) for service, span in collector.received] == [("their-agent", "work")]


def test_of_a_ratio_of_0_nothing_is_kept_but_what_a_client_keeps(collector: Collector, tmp_path: Path) -> None:
    telemetry = {"otlp_endpoint": collector.url, "sample_ratio": 0.0}
    assert tracing.setup_tracing("api", load_settings(data_dir=tmp_path, telemetry=telemetry))
    with tracing.span("ours"):
        assert tracing.traceparent() is None
    with tracing.span("theirs", parent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        pass
    tracing.shut_down_tracing()
    assert [span.name for _, span in collector.received] == ["theirs"]
