"""Stored rows become what the learner trains on: tokens laid end to end, with the reward after feedback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from online_agent.errors import MisalignedEpisode
from online_agent.store.encoding import unpack_spans
from online_agent.store.models import Episode, Feedback, Turn
from online_agent.store.records import FeedbackRule
from online_agent.store.repositories.base import Repository
from online_agent.store.rewards import training_reward
from online_agent.types import EpisodeStatus, FeedbackFate, Span, StopReason, TrainingEpisode, training_episode

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


class LayoutRows(Repository):
    def _lay_out(self, rows: Sequence[Any], rule: FeedbackRule) -> list[TrainingEpisode]:
        """The episodes of rows of ``LAYOUT_COLUMNS``, in their order. One that does not line up is dropped instead."""
        ids = [row.id for row in rows]
        spans = self._spans(ids)
        rewards = self._latest_rewards(ids)
        episodes: list[TrainingEpisode] = []
        for row in rows:
            reward = training_reward(rule, row.reward, rewards.get(row.id, {}))
            is_truncated = row.stop_reason in TRUNCATED
            try:
                episode = training_episode(row.id, spans[row.id], reward, row.temperature, is_truncated)
            except MisalignedEpisode as error:
                dropped = {"status": EpisodeStatus.DROPPED, "drop_reason": "misaligned"}
                values = {**dropped, "untrainable_reason": error.message}
                self._db.execute(update(Episode).where(Episode.id == row.id).values(values))
            else:
                episodes.append(replace(episode, task_id=f"{row.env}/{row.task_id}", group_id=row.group_id))
        return episodes

    def _spans(self, episode_ids: Sequence[str]) -> dict[str, list[Span]]:
        query = (
            select(Turn.episode_id, Turn.span_index, Turn.token_ids, Turn.logprobs)
            .where(Turn.episode_id.in_(episode_ids))
            .order_by(Turn.episode_id, Turn.number)
        )
        spans: dict[str, list[Span]] = defaultdict(list)
        for row in self._db.execute(query):
            spans[row.episode_id].extend(unpack_spans(row.span_index, row.token_ids, row.logprobs))
        return spans

    def _latest_rewards(self, episode_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """Episode → source → the last accepted reward of that source."""
        query = (
            select(Feedback.episode_id, Feedback.source, Feedback.reward)
            .where(
                Feedback.episode_id.in_(episode_ids),
                Feedback.fate == FeedbackFate.ACCEPTED,
                Feedback.reward.is_not(None),
            )
            .order_by(Feedback.id)
        )
        latest: dict[str, dict[str, float]] = defaultdict(dict)
        for row in self._db.execute(query):
            latest[row.episode_id][row.source] = row.reward
        return latest
