"""What the learner's loop asks of a route to exact old log-probs (arXiv 2605.12070), and what a route costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from online_agent.types import TrainingEpisode


@dataclass(frozen=True, slots=True)
class OldLogitsCost:
    """What the last ``fill`` cost the step that asked for it.

    ``seconds``: wall time of the call, waiting included. ``bytes``: memory of the weights and scores the route holds
    besides the trainer. ``paused_seconds``: how long the engine stood still for the route, of the pauses that ended
    since the last report (a pause ends with the swap that follows the step). ``missing_tokens``: action tokens that
    could not be scored.
    """

    seconds: float
    bytes: int
    paused_seconds: float
    missing_tokens: int


class OldLogits(Protocol):
    """One of the three routes. Used by one thread."""

    def fill(self, episodes: Sequence[TrainingEpisode], *, version: int) -> list[TrainingEpisode]:
        """The episodes with ``old_logprobs``: (T,) float32, the trainer's log-prob, at the episode's temperature, of
        each action token under exactly the version that sampled it; NaN elsewhere and where that cannot be had.

        ``version`` is the one the trainer is at. Never raises for what is merely missing.
        """
        ...

    def settle(self, version: int) -> None:
        """The step is over, whatever came of it; the trainer is at ``version``."""
        ...

    def cost(self) -> OldLogitsCost: ...

    def close(self) -> None: ...
