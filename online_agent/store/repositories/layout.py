"""Stored rows become what the learner trains on: tokens laid end to end, with the reward after feedback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select, update

from online_agent.errors import MisalignedEpisode
from online_agent.store.encoding import unpack_spans
from online_agent.store.expert_rows import experts_of
from online_agent.store.models import Episode, Feedback, Turn
from online_agent.store.records import CLIENT_ENV, FeedbackRule
from online_agent.store.repositories.base import Repository
from online_agent.store.repositories.client_rewards import ClientRewardRows
from online_agent.store.repositories.client_rows import ClientRows
from online_agent.store.rewards import Opinion, training_reward
from online_agent.types import (
    EpisodeStatus,
    FeedbackFate,
    Span,
    StopReason,
    TrainingEpisode,
    training_episode,
)

TRUNCATED = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.TIMEOUT)
LAYOUT_COLUMNS = (
    Episode.id,
    Episode.env,
    Episode.task_id,
    Episode.group_id,
    Episode.reward,
    Episode.temperature,
    Episode.stop_reason,
    Episode.finished_at,
)


@dataclass(slots=True)
class _Turns:
    """The turns of one episode: all their spans in token order, and the packed experts of each (None: not returned)."""

    spans: list[Span] = field(default_factory=list)
    experts: list[bytes | None] = field(default_factory=list)


class LayoutRows(Repository):
    def _lay_out(
        self, rows: Sequence[Any], rule: FeedbackRule, *, needs_experts: bool = False
    ) -> list[TrainingEpisode]:
        """The episodes of rows of ``LAYOUT_COLUMNS``, in their order. One that does not line up is dropped instead, and
        with ``needs_experts`` one whose experts are not known.

        A client's episode may be several rows, one for each of its segments (see store/segments.py).
        """
        ids = [row.id for row in rows]
        turns = self._turns([row.id for row in rows if row.env != CLIENT_ENV])
        rewards = self._latest_rewards(ids)
        episodes: list[TrainingEpisode] = []
        for row in rows:
            reward = training_reward(rule, row.reward, rewards.get(row.id, {}))
            is_truncated = row.stop_reason in TRUNCATED
            try:
                if row.env == CLIENT_ENV:
                    own = ClientRewardRows(self._db, self._now).reward_of(row.id)
                    laid = ClientRows(self._db, self._now).training_rows(row.id, row.reward if own is None else own)
                else:
                    own_turns = turns[row.id]
                    one = training_episode(row.id, own_turns.spans, reward, row.temperature, is_truncated)
                    laid = [replace(one, routed_experts=experts_of(one, own_turns.experts))]
            except MisalignedEpisode as error:
                dropped = {"status": EpisodeStatus.DROPPED, "drop_reason": "misaligned"}
                values = {**dropped, "untrainable_reason": error.message}
                self._db.execute(update(Episode).where(Episode.id == row.id).values(values))
                continue
            if needs_experts and any(episode.routed_experts is None for episode in laid):
                unrouted = {"status": EpisodeStatus.DROPPED, "drop_reason": "no_experts"}
                self._db.execute(update(Episode).where(Episode.id == row.id).values(unrouted))
                continue
            task_id = f"{row.env}/{row.task_id}"
            episodes += [replace(episode, task_id=task_id, group_id=row.group_id) for episode in laid]
        return episodes

    def _turns(self, episode_ids: Sequence[str]) -> dict[str, _Turns]:
        query = (
            select(Turn.episode_id, Turn.span_index, Turn.token_ids, Turn.logprobs, Turn.routed_experts)
            .where(Turn.episode_id.in_(episode_ids))
            .order_by(Turn.episode_id, Turn.number)
        )
        turns: dict[str, _Turns] = defaultdict(_Turns)
        for row in self._db.execute(query):
            of_episode = turns[row.episode_id]
            of_episode.spans.extend(unpack_spans(row.span_index, row.token_ids, row.logprobs))
            of_episode.experts.append(row.routed_experts)
        return turns

    def _latest_rewards(self, episode_ids: Sequence[str]) -> dict[str, dict[str, Opinion]]:
        """Episode → source → what that source said last and was accepted."""
        query = (
            select(Feedback.episode_id, Feedback.source, Feedback.reward, Feedback.weight)
            .where(
                Feedback.episode_id.in_(episode_ids),
                Feedback.fate == FeedbackFate.ACCEPTED,
                Feedback.reward.is_not(None),
            )
            .order_by(Feedback.id)
        )
        latest: dict[str, dict[str, Opinion]] = defaultdict(dict)
        for row in self._db.execute(query):
            latest[row.episode_id][row.source] = Opinion(row.reward, row.weight)
        return latest
