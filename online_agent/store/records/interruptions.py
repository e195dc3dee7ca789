"""Interruptions of the engine that the learner asks for, and what was being sampled in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from online_agent.types import Span


class InterruptionState(StrEnum):
    """asked (by the learner) → paused (by the api) → released (no new version comes) → ended; any → ended."""

    ASKED = "asked"
    PAUSED = "paused"
    RELEASED = "released"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class InterruptionRecord:
    """``version`` is what the engine served and the learner is about to replace; ``outcome`` says how it ended."""

    number: int
    version: int
    state: InterruptionState
    outcome: str | None
    asked_at: float
    paused_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class PartialGenerationNew:
    """Tokens sampled for an episode that no turn holds yet. ``spans``: all tokens before them, then the action.

    ``temperature`` is that of a client's call; None stands for the episode's.
    """

    episode_id: str
    spans: Sequence[Span]
    temperature: float | None = None
