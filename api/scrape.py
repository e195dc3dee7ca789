"""The facts behind ``/metrics`` that live in the database, read in one go at scrape time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from online_agent.store.records import AnswerCounts, EventRecord, StepRecord
from online_agent.store.session import Transaction

NUM_STEPS = 200  # the window of what speaks of recent steps
NUM_SWAPS = 200  # and of recent swaps
NUM_ANSWER_VERSIONS = 8  # versions whose answers are told: each is a label


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number with its explanation; ``value`` None means there is nothing to say yet, and nothing is said."""

    text: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """``staleness`` counts trained episodes of recent steps by staleness in versions; ``last_step`` by metric name;
    ``answers`` by version, newest first."""

    episodes_by_status: dict[str, int]
    drops_by_reason: dict[str, int]
    untrainable_by_reason: dict[str, int]
    steps_by_status: dict[str, int]
    staleness: list[int]
    last_step: dict[str, float]
    gauges: dict[str, Gauge]
    answers: list[AnswerCounts]


def collect(tx: Transaction, group_size: int | None) -> Facts:
    """``group_size`` is that of the learner's recipe: what waits for it depends on it."""
    steps, swaps = tx.steps.last(NUM_STEPS), tx.events.latest(("swap",), NUM_SWAPS)
    return Facts(
        episodes_by_status={status.value: count for status, count in tx.episodes.counts_by_status().items()},
        drops_by_reason=tx.episodes.drops_by_reason(),
        untrainable_by_reason=tx.episodes.untrainable_by_reason(),
        steps_by_status={status.value: count for status, count in tx.steps.counts_by_status().items()},
        staleness=_staleness(steps),
        last_step=_numbers(steps),
        gauges={**_queue(tx, group_size), **_versions(tx), **_swaps(swaps), **_clients(tx)},
        answers=tx.answers.by_version(NUM_ANSWER_VERSIONS),
    )


def _queue(tx: Transaction, group_size: int | None) -> dict[str, Gauge]:
    queue = tx.episodes.queue(group_size)
    age_s = None if queue.oldest_ready_at is None else max(0.0, time.time() - queue.oldest_ready_at)
    return {
        "queue_ready": Gauge("Graded episodes that wait for the learner", queue.num_ready),
        "queue_ungraded": Gauge("Finished episodes that wait for their verdict", queue.num_ungraded),
        "queue_age_seconds": Gauge("Age of the oldest episode that waits for the learner", age_s),
    }


def _versions(tx: Transaction) -> dict[str, Gauge]:
    serving, control = tx.weights.serving(), tx.control.get()
    return {
        "serving_version": Gauge("The weight version that serves", serving.version if serving else None),
        "learner_version": Gauge("The weight version that the learner continues from", control.current_version),
        "learner_paused": Gauge("1 while the learner is paused", float(control.is_paused)),
        "episodes_trained_twice": Gauge("Episodes in two committed steps; must be 0", tx.episodes.trained_twice()),
    }


def _clients(tx: Transaction) -> dict[str, Gauge]:
    tokens = tx.clients.tokens()
    share = tokens.mean_kept_share
    return {
        "client_episodes": Gauge("Episodes that clients ran", tokens.num_episodes),
        "client_tokens_sampled": Gauge("Tokens sampled for clients, discarded ones included", tokens.num_sampled),
        "client_tokens_kept": Gauge("Of these, tokens that may be trained on", tokens.num_kept),
        "client_kept_share_mean": Gauge("Kept by sampled tokens, mean over clients' episodes", share),
        "feedback_waiting": Gauge("Feedback that waits for an operator's decision", tx.feedback.num_waiting()),
    }


def _swaps(swaps: Sequence[EventRecord]) -> dict[str, Gauge]:
    """Over the last NUM_SWAPS hot swaps."""
    seconds = _column(swaps, "seconds")
    return {
        "swaps_recent": Gauge("Hot swaps in the window of the swap metrics", len(swaps)),
        "swap_seconds_median": Gauge("Seconds a hot swap took, median", median(seconds) if seconds else None),
        "swap_seconds_max": Gauge("Seconds a hot swap took, longest", max(seconds, default=None)),
        "swap_requests_held": Gauge("Requests held during hot swaps", sum(_column(swaps, "held"))),
        "swap_requests_failed": Gauge("Episodes that failed during hot swaps; target 0", sum(_column(swaps, "failed"))),
    }


def _column(events: Sequence[EventRecord], name: str) -> list[float]:
    return [float(event.data[name]) for event in events if _is_number(event.data.get(name))]


def _staleness(steps: Sequence[StepRecord]) -> list[int]:
    total: list[int] = []
    for step in steps:
        counts: list[int] = step.metrics.get("staleness/histogram") or []
        total += [0] * (len(counts) - len(total))
        for versions, count in enumerate(counts):
            total[versions] += count
    return total


def _numbers(steps: Sequence[StepRecord]) -> dict[str, float]:
    """The metrics of the newest step that has any, such as tokens/kept and tokens/total."""
    newest = next((step for step in steps if step.metrics), None)
    return {} if newest is None else {k: float(v) for k, v in newest.metrics.items() if _is_number(v)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
