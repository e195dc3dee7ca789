"""The end of a client's episode: closed or idle, then rewarded by feedback, since no environment gives a verdict.

An episode without feedback of its own takes the reward of the episode it was started from: a sub-agent's work counts
by what came of the whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, func, select, update

from online_agent.store.models import ClientEpisode, Completion, Episode, Feedback
from online_agent.store.records import CLIENT_ENV
from online_agent.store.repositories.base import Repository
from online_agent.store.rewards import Opinion, weighted_mean
from online_agent.types import EpisodeStatus, FeedbackFate, StopReason

REWARDED = (EpisodeStatus.GRADED, EpisodeStatus.RESERVED, EpisodeStatus.TRAINED)
NOTHING_TO_TRAIN = "no trainable action tokens"


class ClientRewardRows(Repository):
    def close(self, episode_id: str, reason: StopReason, idle_since: float | None = None) -> bool:
        """Whether the open episode is over now: it takes no more turns and has its reward if there is feedback.

        With ``idle_since``, only if no call came in after that time.
        """
        still_idle = select(ClientEpisode.episode_id).where(ClientEpisode.episode_id == episode_id)
        if idle_since is not None:
            still_idle = still_idle.where(ClientEpisode.active_at <= idle_since)
        closed = self._db.execute(
            update(Episode)
            .where(Episode.id.in_(still_idle), Episode.status == EpisodeStatus.OPEN)
            .values(
                status=EpisodeStatus.FINISHED,
                stop_reason=reason,
                finished_at=self._now(),
                untrainable_reason=func.coalesce(Episode.untrainable_reason, self._why_untrainable(episode_id)),
            )
        )
        if closed.rowcount:
            self.settle(episode_id)
        return bool(closed.rowcount)

    def idle(self, idle_since: float, limit: int = 100) -> list[str]:
        """Open episodes without a call since then."""
        query = (
            select(ClientEpisode.episode_id)
            .join(Episode, Episode.id == ClientEpisode.episode_id)
            .where(ClientEpisode.active_at <= idle_since, Episode.status == EpisodeStatus.OPEN)
            .order_by(ClientEpisode.active_at)
            .limit(limit)
        )
        return list(self._db.execute(query).scalars())

    def num_unrewarded(self, finished_before: float) -> int:
        """Episodes that have waited for a reward since then or longer."""
        query = select(func.count()).where(*_unrewarded(finished_before))
        return int(self._db.execute(query).scalar_one())

    def drop_unrewarded(self, finished_before: float) -> int:
        """Episodes that nobody rewarded in time are dropped; returns how many."""
        dropped = update(Episode).where(*_unrewarded(finished_before))
        values = {"status": EpisodeStatus.DROPPED, "drop_reason": "no reward"}
        return int(self._db.execute(dropped.values(values)).rowcount)

    def settle(self, episode_id: str) -> None:
        """A finished episode of a client, with a reward or a rewarded parent, is graded; so are those it started.

        The reward follows feedback until a step reserves the episode. Nothing happens to one that is no client's.
        """
        row = self._db.execute(
            select(Episode.status, Episode.reward, ClientEpisode.parent_id)
            .join(ClientEpisode, ClientEpisode.episode_id == Episode.id)
            .where(Episode.id == episode_id)
        ).one_or_none()
        if row is None or row.status not in (EpisodeStatus.FINISHED, EpisodeStatus.GRADED):
            return
        evidence: dict[str, Any] = {"sources": self.rewards_by_source(episode_id)}
        reward = self.reward_of(episode_id)
        if reward is None and row.parent_id is not None:
            inherited = select(Episode.reward).where(Episode.id == row.parent_id, Episode.status.in_(REWARDED))
            reward = self._db.execute(inherited).scalar_one_or_none()
            evidence = {"inherited_from": row.parent_id}
        if reward is None:
            return
        values = {
            "status": EpisodeStatus.GRADED,
            "reward": reward,
            "is_success": reward > 0,
            "evidence": evidence,
            "graded_at": self._now(),
        }
        self._db.execute(update(Episode).where(Episode.id == episode_id).values(values))
        for child in self._db.execute(
            select(ClientEpisode.episode_id).where(ClientEpisode.parent_id == episode_id)
        ).scalars():
            self.settle(child)

    def reward_of(self, episode_id: str) -> float | None:
        """The weighted mean over the sources of what each gave; None without a reward of its own."""
        return weighted_mean(self._opinions(episode_id).values())

    def rewards_by_source(self, episode_id: str) -> dict[str, float]:
        return {source: opinion.reward for source, opinion in self._opinions(episode_id).items()}

    def _opinions(self, episode_id: str) -> dict[str, Opinion]:
        """What each source gave: the mean of its latest on each set of turns it spoke of, the whole being one; with the
        weight of its latest."""
        query = (
            select(Feedback.source, Feedback.turns, Feedback.reward, Feedback.weight)
            .where(
                Feedback.episode_id == episode_id,
                Feedback.fate == FeedbackFate.ACCEPTED,
                Feedback.reward.is_not(None),
            )
            .order_by(Feedback.id)
        )
        latest: dict[str, dict[tuple[int, ...], float]] = defaultdict(dict)
        weights: dict[str, float] = {}
        for row in self._db.execute(query):
            latest[row.source][tuple(row.turns)] = float(row.reward)
            weights[row.source] = float(row.weight)
        return {
            source: Opinion(math.fsum(given.values()) / len(given), weights[source]) for source, given in latest.items()
        }

    def _why_untrainable(self, episode_id: str) -> str | None:
        """None when something of the episode may be trained on."""
        kept = self._db.execute(
            select(ClientEpisode.num_kept_tokens).where(ClientEpisode.episode_id == episode_id)
        ).scalar_one_or_none()
        if kept:
            return None
        reasons = select(Completion.untrainable_reason).where(
            Completion.episode_id == episode_id, Completion.untrainable_reason.is_not(None)
        )
        return self._db.execute(reasons.order_by(Completion.turn).limit(1)).scalar_one_or_none() or NOTHING_TO_TRAIN


def _unrewarded(finished_before: float) -> tuple[ColumnElement[bool], ...]:
    is_finished = Episode.status == EpisodeStatus.FINISHED
    return (is_finished, Episode.env == CLIENT_ENV, Episode.finished_at <= finished_before)
