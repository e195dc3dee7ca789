"""Episodes that clients run: their answers, how the turns hang together, and what was thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from online_agent.store.records.episodes import TurnNew
from online_agent.store.records.json import Json
from online_agent.types import AnswerKind, EpisodeStatus, Span, SpanKind, StopReason

CLIENT_ENV = "client"
"""The environment of episodes whose tools and verdict are the client's own."""


@dataclass(frozen=True, slots=True)
class ClientEpisodeRecord:
    """``num_kept_tokens`` of the sampled tokens may be trained on; ``num_discarded_tokens`` are no turns (any more).

    ``temperature`` is 0 as long as all of them were sampled greedily.
    """

    id: str
    tenant_id: str
    name: str | None
    parent_id: str | None
    status: EpisodeStatus
    stop_reason: StopReason | None
    active_at: float
    num_turns: int
    num_segments: int
    num_action_tokens: int
    num_kept_tokens: int
    num_discarded_tokens: int
    temperature: float

    @property
    def is_active(self) -> bool:
        """Whether it takes answers: it is open, or was only idle and has no reward yet."""
        return self.status is EpisodeStatus.OPEN or (
            self.status is EpisodeStatus.FINISHED and self.stop_reason is StopReason.IDLE
        )

    @property
    def num_sampled_tokens(self) -> int:
        return self.num_action_tokens + self.num_discarded_tokens


@dataclass(frozen=True, slots=True)
class ClientTokens:
    """Over all episodes of clients: sampled tokens, those that may be trained on, and the mean share per episode."""

    num_episodes: int
    num_sampled: int
    num_kept: int
    mean_kept_share: float | None


@dataclass(frozen=True, slots=True)
class CompletionNew:
    """One choice of an answer, to be stored as a turn.

    ``turn.spans`` follow the ids of turn ``parent`` (``parent_completion`` at the time), or begin a conversation when
    that is None; ``context`` are those ids, for the case that the parent was replaced meanwhile. ``asked_at`` is when
    the call came in: what was stored before and has the same ``call_hash`` is what this one retries.
    """

    completion_id: str
    choice: int
    protocol: str
    turn: TurnNew
    context: Sequence[Span]
    parent: int | None
    parent_completion: str | None
    call_hash: str
    history_hash: str
    message_hash: str
    temperature: float
    asked_at: float
    num_forced: int = 0
    untrainable_reason: str | None = None
    is_cut_short: bool = False
    message: Json = field(default_factory=dict)
    tags: Json = field(default_factory=dict)
    weight_version: int | None = None
    answer_kind: AnswerKind | None = None
    has_tools: bool = False
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionLink:
    """How a turn hangs together with the others, without its contents."""

    turn: int
    completion_id: str
    choice: int
    segment: int
    branched_from: int | None
    call_hash: str
    history_hash: str
    message_hash: str
    num_forced: int
    is_cut_short: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    episode_id: str
    turn: int
    completion_id: str
    choice: int
    protocol: str
    segment: int
    branched_from: int | None
    temperature: float
    untrainable_reason: str | None
    is_cut_short: bool
    message: Json
    tags: Json
    weight_version: int | None
    created_at: float


@dataclass(frozen=True, slots=True)
class DiscardedRecord:
    """A generation that is no turn. ``turn`` is where it stood, None when it never was one."""

    id: int
    episode_id: str
    turn: int | None
    completion_id: str
    reason: str
    text: str
    spans: list[Span]
    created_at: float

    @property
    def num_sampled(self) -> int:
        return sum(len(span.token_ids) for span in self.spans if span.kind is SpanKind.ACTION)


@dataclass(frozen=True, slots=True)
class SeenEpisode:
    """An episode as it was read, and how its turns hang together. Read in this order: the links are no older."""

    episode: ClientEpisodeRecord
    links: Sequence[CompletionLink]

    def is_still(self, episode: ClientEpisodeRecord) -> bool:
        """Whether nothing was written to the episode since: every write counts something and moves ``active_at``."""
        return bool(_WRITTEN(self.episode) == _WRITTEN(episode))


_WRITTEN = attrgetter("id", "active_at", "num_turns", "num_segments", "num_discarded_tokens")
