"""Bodies and answers about episodes that clients run themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from api.bodies import Answer, Body
from api.feedback.schemas import FeedbackOut
from online_agent.store.records import ClientEpisodeRecord, CompletionRecord, DiscardedRecord, EpisodeRecord

CLOSING_SOURCE = "client"
MAX_OUTCOME_CHARS = 2000


class EpisodeClose(Body):
    """A client's episode is over. ``reward`` counts as feedback of the source ``client``, ``outcome`` as its text."""

    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    outcome: Annotated[str, Field(min_length=1, max_length=MAX_OUTCOME_CHARS)] | None = None


class ClientEpisodeOut(Answer):
    """One episode of a client. ``num_kept_tokens`` of ``num_sampled_tokens`` may be trained on.

    ``reward`` is there once it is over and somebody gave one, ``step`` once a learner step holds it.
    """

    id: str
    object: Literal["client_episode"] = "client_episode"
    name: str | None
    parent_id: str | None
    status: str
    reward: float | None
    step: int | None
    untrainable_reason: str | None
    num_turns: int
    num_segments: int
    num_sampled_tokens: int
    num_kept_tokens: int
    num_discarded_tokens: int

    @classmethod
    def of(cls, client: ClientEpisodeRecord, record: EpisodeRecord) -> Self:
        return cls(
            id=client.id,
            name=client.name,
            parent_id=client.parent_id,
            status=record.status,
            reward=None if record.verdict is None else record.verdict.reward,
            step=record.step,
            untrainable_reason=record.untrainable_reason,
            num_turns=record.num_turns,
            num_segments=client.num_segments,
            num_sampled_tokens=client.num_sampled_tokens,
            num_kept_tokens=client.num_kept_tokens,
            num_discarded_tokens=client.num_discarded_tokens,
        )


class CompletionOut(Answer):
    """One answer as it is stored: where it stands, and why it is not trained on if that is so."""

    completion_id: str
    turn: int
    choice: int
    protocol: str
    segment: int
    branched_from: int | None
    temperature: float
    weight_version: int | None
    untrainable_reason: str | None
    is_cut_short: bool
    tags: dict[str, Any]
    created_at: float

    @classmethod
    def of(cls, record: CompletionRecord) -> Self:
        return cls(
            completion_id=record.completion_id,
            turn=record.turn,
            choice=record.choice,
            protocol=record.protocol,
            segment=record.segment,
            branched_from=record.branched_from,
            temperature=record.temperature,
            weight_version=record.weight_version,
            untrainable_reason=record.untrainable_reason,
            is_cut_short=record.is_cut_short,
            tags=dict(record.tags),
            created_at=record.created_at,
        )


class DiscardedOut(Answer):
    """A generation that is no turn: an exact retry took its place, or it never came to its end."""

    completion_id: str
    turn: int | None
    reason: str
    text: str
    num_tokens: int
    created_at: float

    @classmethod
    def of(cls, record: DiscardedRecord) -> Self:
        return cls(
            completion_id=record.completion_id,
            turn=record.turn,
            reason=record.reason,
            text=record.text,
            num_tokens=record.num_sampled,
            created_at=record.created_at,
        )


class CompletionList(Answer):
    """Every answer of an episode in order of its turns, and the generations that are no turns (any more)."""

    data: list[CompletionOut]
    discarded: list[DiscardedOut]


class ReceiptOut(Answer):
    """What became of an answer: its episode, its turns, and the feedback on them with its fate.

    ``is_replaced``: an exact retry took its place. ``step`` is the learner step that holds or used the episode.
    """

    completion_id: str
    object: Literal["receipt"] = "receipt"
    episode: ClientEpisodeOut
    turns: list[int]
    is_replaced: bool
    feedback: list[FeedbackOut]
