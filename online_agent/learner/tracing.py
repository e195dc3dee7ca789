"""The trace of a step: one span linked to every episode's trace, and one in each of these, so that they lead here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.trace import Link
from opentelemetry.util.types import AttributeValue

from online_agent.store.repositories.traces import EpisodeTrace
from online_agent.store.session import Database
from online_agent.telemetry import conventions as names
from online_agent.telemetry import tracing


class TracedStep:
    """What became of the step; one that says nothing was given up half-way."""

    def __init__(self, step: int, parent_version: int, num_episodes: int) -> None:
        self.step = step
        self.attributes: dict[str, AttributeValue] = {
            names.STEP: step,
            names.PARENT_VERSION: parent_version,
            names.NUM_EPISODES: num_episodes,
            names.STEP_OUTCOME: "given_up",
        }

    def committed(self, version: int) -> None:
        self.attributes |= {names.STEP_OUTCOME: "committed", names.WEIGHT_VERSION: version}

    def skipped(self, reason: str) -> None:
        self.attributes |= {names.STEP_OUTCOME: "skipped", names.STEP_REASON: reason}


@contextmanager
def traced_step(db: Database, step: int, parent_version: int, num_episodes: int) -> Iterator[TracedStep]:
    """The step is worked on inside the block.

    Its span begins a trace of its own, since many traces lead to it (span links). When it ends, each trace that led to
    it gets a child span of the same length, ``train step N``, which links back.
    """
    traced = TracedStep(step, parent_version, num_episodes)
    if not tracing.is_on():
        yield traced
        return
    with db.reading() as tx:
        origins = tx.traces.of_step(step)
    started_ns = time.time_ns()
    links = [_link(origin.traceparent, origin.episode_id) for origin in origins]
    with tracing.span(f"train step {step}", links=links) as span:
        here = tracing.traceparent()
        try:
            yield traced
        finally:
            span.set_attributes(traced.attributes)
            _tell(origins, traced, here, started_ns)


def _tell(origins: Sequence[EpisodeTrace], traced: TracedStep, here: str | None, started_ns: int) -> None:
    """One span in each trace, below the first answer or request of it that the step was given."""
    seen: set[int] = set()
    for origin in origins:
        trace_id = tracing.span_context_of(origin.traceparent).trace_id
        if trace_id in seen:
            continue
        seen.add(trace_id)
        tracing.past_span(
            f"train step {traced.step}",
            {**traced.attributes, names.EPISODE: origin.episode_id},
            parent=origin.traceparent,
            links=[] if here is None else [_link(here)],
            started_ns=started_ns,
        )


def _link(traceparent: str, episode_id: str | None = None) -> Link:
    return Link(tracing.span_context_of(traceparent), None if episode_id is None else {names.EPISODE: episode_id})
