"""Settings of what may train, and how much it counts: feedback, judge, secrets and tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from online_agent.config.section import PositiveFloat, PositiveInt, Section
from online_agent.redaction import Redactor
from online_agent.redaction.patterns import DEFAULT_KINDS, SecretKind


class FeedbackSettings(Section):
    """How feedback becomes a reward, and what of it waits for an operator.

    ``rule`` combines verdict and sources. ``weights`` by name of the source, 1 where it is not named; a piece keeps the
    weight it came in with. ``max_per_minute`` and ``max_per_day`` are for one person of one source. A minute in which a
    source as a whole gave more than ``burst_floor``, and far more than its day before lets expect, is a burst. The
    first reward of its kind whose modified z-score in what its source or person gave before is above
    ``outlier_threshold`` waits too; None lets all through.
    """

    rule: Literal["mean_with_verdict", "feedback_first", "verdict_only"] = "mean_with_verdict"
    weights: dict[str, Annotated[float, Field(ge=0, le=1000)]] = Field(default_factory=dict)
    max_per_minute: PositiveInt = 600
    max_per_day: PositiveInt = 10_000
    burst_floor: PositiveInt | None = 600
    outlier_threshold: PositiveFloat | None = 3.5
    outlier_min_history: Annotated[int, Field(ge=10)] = 100
    outlier_window: Annotated[int, Field(ge=10, le=10_000)] = 200

    def weight_of(self, source: str) -> float:
        return self.weights.get(source, 1.0)


class JudgeSettings(Section):
    """Who judges an answer by what followed it. ``kind`` empty: nobody; ``openai``: the model ``model`` behind an
    OpenAI-compatible ``url``; ``package.module:factory``: what ``factory(settings)`` gives.

    The verdicts are feedback of the source ``judge`` with ``weight``. ``timeout_s`` is for one case with its retries;
    the last ``max_chars`` of each text are read. Every ``interval_s`` up to ``batch`` answers, ``num_at_once``.
    """

    kind: Annotated[str, Field(pattern=r"^$|^openai$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = ""
    url: str = ""
    model: str = ""
    api_key: SecretStr = SecretStr("")
    weight: Annotated[float, Field(ge=0, le=1000)] = 0.5
    timeout_s: PositiveFloat = 30.0
    attempts: PositiveInt = 3
    max_chars: PositiveInt = 8000
    interval_s: PositiveFloat = 5.0
    batch: Annotated[int, Field(ge=1, le=1000)] = 32
    num_at_once: PositiveInt = 4


class RedactionSettings(Section):
    """Which secrets are taken out of text before it is tokenised, stored or logged: known kinds, and own patterns
    (name to regular expression), which see one text at a time."""

    kinds: tuple[SecretKind, ...] = DEFAULT_KINDS
    patterns: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _patterns_can_be_used(self) -> Self:
        self.redactor()
        return self

    def redactor(self, tell: Callable[[str], None] = lambda name: None) -> Redactor:
        """``tell`` hears the name of the pattern of each secret that is replaced."""
        return Redactor.of(self.kinds, self.patterns, tell)


class TenantSettings(Section):
    """``retention_days``: episodes are erased so long after their end; None keeps them."""

    retention_days: PositiveFloat | None = None
