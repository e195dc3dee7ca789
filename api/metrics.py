"""Prometheus metrics. What the database knows is read from it at scrape time; only HTTP counts live in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.scrape import Facts
from online_agent.store.records import AnswerCounts

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PREFIX = "online_agent"
UNKNOWN_ROUTE = "unknown"  # one label for all paths that do not exist: a scanner must not make a million series


class ApiMetrics:
    """The counters of one application. Each application has its own registry, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            f"{PREFIX}_http_requests", "Requests answered", ["route", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            f"{PREFIX}_http_request_seconds",
            "Time to the first byte of the answer",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )

        self.judgements = Counter(
            f"{PREFIX}_judgements", "Answers put before the judge, by outcome", ["outcome"], registry=self.registry
        )
        self.redactions = Counter(
            f"{PREFIX}_redactions", "Secrets taken out of text, by pattern", ["pattern"], registry=self.registry
        )

        self.tool_calls = Counter(
            f"{PREFIX}_client_tool_calls",
            "Calls in answers to clients: read, or begun and unreadable",
            ["outcome"],
            registry=self.registry,
        )

    def called(self, num_read: int, num_unread: int) -> None:
        self.tool_calls.labels("read").inc(num_read)
        self.tool_calls.labels("unreadable").inc(num_unread)

    def judged(self, outcome: str) -> None:
        self.judgements.labels(outcome).inc()

    def redacted(self, pattern: str) -> None:
        self.redactions.labels(pattern).inc()

    def render(self, facts: Facts) -> bytes:
        """The exposition text: the counters of this process and ``facts`` from the database."""
        registry = CollectorRegistry()
        registry.register(_FactsCollector(facts))
        return bytes(generate_latest(self.registry) + generate_latest(registry))


class CountRequests:
    """ASGI middleware around everything: counts answers by route template and status."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                metrics: ApiMetrics = scope["app"].state.runtime.metrics
                route = getattr(scope.get("route"), "path_format", UNKNOWN_ROUTE)
                metrics.requests.labels(route, scope["method"], message["status"]).inc()
                metrics.seconds.labels(route).observe(time.perf_counter() - started)
            await send(message)

        await self.app(scope, receive, count_and_send)


class _FactsCollector(Collector):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield _labelled("episodes", "Episodes by status", "status", facts.episodes_by_status)
        yield _labelled("episodes_dropped", "Dropped episodes by reason", "reason", facts.drops_by_reason)
        yield _labelled("episodes_untrainable", "Untrainable episodes", "reason", facts.untrainable_by_reason)
        yield _labelled("steps", "Learner steps by status", "status", facts.steps_by_status)
        yield _labelled("last_step", "Metrics of the newest step", "metric", facts.last_step)
        yield _staleness(facts.staleness)
        yield from _answers(facts.answers)
        for name, gauge in facts.gauges.items():
            if gauge.value is not None:
                yield GaugeMetricFamily(f"{PREFIX}_{name}", gauge.text, value=gauge.value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _staleness(counts: Sequence[int]) -> Metric:
    """``counts[v]`` episodes were v versions stale; shown as cumulative buckets."""
    family = GaugeHistogramMetricFamily(f"{PREFIX}_staleness_versions", "Staleness of recently trained episodes")
    buckets, running = [], 0
    for versions, count in enumerate(counts):
        running += count
        buckets.append((str(float(versions)), float(running)))
    buckets.append(("+Inf", float(running)))
    family.add_metric([], buckets, gsum_value=float(sum(v * n for v, n in enumerate(counts))))
    return family


def _answers(answers: Sequence[AnswerCounts]) -> Iterator[Metric]:
    """Two families: how many answers of a version a share is of, and the share."""
    labels = ["version", "share"]
    nums = GaugeMetricFamily(f"{PREFIX}_answers", "Answers to clients that the share is of", labels=labels)
    shares = GaugeMetricFamily(f"{PREFIX}_answers_share", "Of these: idle, unreadable or refusing", labels=labels)
    for of_version in answers:
        for name, one in of_version.shares().items():
            if one.share is not None:
                nums.add_metric([str(of_version.version), name], one.num_answers)
                shares.add_metric([str(of_version.version), name], one.share)
    yield nums
    yield shares
