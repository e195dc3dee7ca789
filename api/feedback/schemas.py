"""Bodies and answers of ``/v1/episodes/{id}/feedback``."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from api.bodies import Answer, Body
from online_agent.store.records import FeedbackRecord

MAX_TEXT_CHARS = 20_000
MAX_TURNS = 256


TurnName = Annotated[int, Field(ge=0, le=10_000)] | Annotated[str, Field(min_length=1, max_length=200)]


class FeedbackCreate(Body):
    """What somebody thinks of an episode: a reward, a text, or both.

    ``person`` is who of the source it comes from: caps are for each person. ``turns`` names the turns it is about, by
    number or by the id of the completion that a client got.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reward": 1.0, "source": "reviewer"}, {"text": "wrong file", "source": "ci"}]}
    )

    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None
    source: Annotated[str, Field(min_length=1, max_length=100)]
    person: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    turns: Annotated[list[TurnName], Field(max_length=MAX_TURNS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackCreate:
        if self.reward is None and self.text is None:
            raise ValueError("give a reward, a text, or both")
        return self


class FeedbackOut(Answer):
    """One piece of feedback and its fate; ``step`` is the step that used it. No turns means the whole episode.

    ``weight`` is how much it counts beside other sources.
    """

    id: int
    episode_id: str
    source: str
    person: str | None
    reward: float | None
    text: str | None
    turns: list[int]
    weight: float
    fate: str
    reason: str | None
    step: int | None
    created_at: float

    @classmethod
    def of(cls, record: FeedbackRecord) -> Self:
        return cls(
            id=record.id,
            episode_id=record.episode_id,
            source=record.source,
            person=record.person,
            reward=record.reward,
            text=record.text,
            turns=list(record.turns),
            weight=record.weight,
            fate=record.fate,
            reason=record.fate_reason,
            step=record.step,
            created_at=record.created_at,
        )


class FeedbackList(Answer):
    data: list[FeedbackOut]


class QuarantineList(FeedbackList):
    next_cursor: str | None
