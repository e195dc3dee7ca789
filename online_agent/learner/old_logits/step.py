"""What the loop does with a route, if the recipe has one, around each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.report import StepReport
from online_agent.types import TrainingEpisode


def filled(route: OldLogits | None, episodes: Sequence[TrainingEpisode], version: int) -> list[TrainingEpisode]:
    """The episodes as the trainer needs them."""
    return list(episodes) if route is None else route.fill(episodes, version=version)


def with_cost(report: StepReport, route: OldLogits | None) -> StepReport:
    """The report with what the route cost this step."""
    if route is None:
        return report
    cost = route.cost()
    paid = {
        "old_logits/seconds": cost.seconds,
        "old_logits/bytes": float(cost.bytes),
        "old_logits/paused_seconds": cost.paused_seconds,
        "old_logits/missing_tokens": float(cost.missing_tokens),
    }
    return replace(report, metrics={**report.metrics, **paid})


@contextmanager
def settled(route: OldLogits | None, version: Callable[[], int]) -> Iterator[None]:
    """However the step inside the block ends, the route hears of it with the version the trainer is at then."""
    try:
        yield
    finally:
        if route is not None:
            route.settle(version())
