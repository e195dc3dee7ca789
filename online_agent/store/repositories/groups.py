"""Groups in the training queue, for recipes that compare rollouts of one task with each other.

A group is complete when none of its members can still arrive: each is graded, failed, dropped or untrainable. Erased
members are gone. A complete group is taken whole, or not at all: with at least two members in the queue, and none that
a step has already held. What can never be part of such a group is dropped, with the reason

- ``ungrouped``        it belongs to no group;
- ``group_split``      a step without groups has taken another member of its group;
- ``group_too_small``  the others of its complete group are not in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Exists, Select, exists, func, select, text, update
from sqlalchemy.orm import aliased

from online_agent.store.models import Episode
from online_agent.store.models.episodes import QUEUED, QUEUED_IN_GROUP
from online_agent.store.records import FeedbackRule
from online_agent.store.repositories.consent import HAS_CONSENT
from online_agent.store.repositories.layout import LAYOUT_COLUMNS, LayoutRows
from online_agent.types import EpisodeStatus, TrainingEpisode

MIN_GROUP_EPISODES = 2
"""A reward is compared with the rewards of the others: one alone says nothing."""

_IN_GROUP = text(QUEUED_IN_GROUP)
_Other = aliased(Episode)


def _other_member(group_id: Any, *which: ColumnElement[bool]) -> Exists:
    return exists().where(_Other.group_id == group_id, *which)


def _arriving(group_id: Any) -> Exists:
    """A member of the group that can still come into the queue."""
    is_under_way = _Other.status.in_((EpisodeStatus.OPEN, EpisodeStatus.FINISHED))
    return _other_member(group_id, is_under_way, _Other.untrainable_reason.is_(None))


def _taken(group_id: Any) -> Exists:
    return _other_member(group_id, _Other.status.in_((EpisodeStatus.RESERVED, EpisodeStatus.TRAINED)))


_waiting = (
    select(Episode.group_id, func.count().label("num_episodes"), func.max(Episode.finished_at).label("completed_at"))
    .where(_IN_GROUP, HAS_CONSENT)
    .group_by(Episode.group_id)
    .subquery()
)
_IS_COMPLETE = ~_arriving(_waiting.c.group_id)
_IS_READY = (
    _waiting.c.num_episodes >= MIN_GROUP_EPISODES,
    _IS_COMPLETE,
    ~_taken(_waiting.c.group_id),
)


def oldest_ready_groups(limit: int) -> Select[tuple[str, int]]:
    """(group id, number of episodes) of the groups that can be taken, by the time their last episode finished."""
    columns = select(_waiting.c.group_id, _waiting.c.num_episodes).where(*_IS_READY)
    return columns.order_by(_waiting.c.completed_at, _waiting.c.group_id).limit(limit)


class GroupRows(LayoutRows):
    def _ready_in_groups(self) -> tuple[int, float | None]:
        """How many episodes wait in groups that can be taken, and since when the first of these is complete."""
        counts = select(func.coalesce(func.sum(_waiting.c.num_episodes), 0), func.min(_waiting.c.completed_at))
        num_ready, oldest_at = self._db.execute(counts.where(*_IS_READY)).one()
        return int(num_ready), oldest_at

    def _oldest_groups(
        self, batch: int, rule: FeedbackRule, *, allow_fewer: bool, needs_experts: bool
    ) -> list[TrainingEpisode]:
        """The episodes of the oldest groups that fit in ``batch``, group after group; the first always fits.

        Empty when more would fit than wait (unless ``allow_fewer``).
        """
        self._drop(text(QUEUED), Episode.group_id.is_(None), reason="ungrouped")
        self._drop(_IN_GROUP, _taken(Episode.group_id), reason="group_split")
        while True:
            self._drop_too_small()
            waiting = self._db.execute(oldest_ready_groups(limit=batch // MIN_GROUP_EPISODES + 1))
            groups = {row.group_id: row.num_episodes for row in waiting}
            chosen, is_full = fit(groups, batch)
            if not chosen or not (is_full or allow_fewer):
                return []
            episodes = self._lay_out(self._members(chosen), rule, needs_experts=needs_experts)
            num_laid_out = len({episode.episode_id for episode in episodes})
            if num_laid_out == sum(groups[group_id] for group_id in chosen):
                return episodes

    def _members(self, group_ids: Sequence[str]) -> list[Any]:
        query = (
            select(*LAYOUT_COLUMNS)
            .where(_IN_GROUP, HAS_CONSENT, Episode.group_id.in_(group_ids))
            .order_by(Episode.finished_at, Episode.id)
            .with_for_update()
        )
        place = {group_id: number for number, group_id in enumerate(group_ids)}
        return sorted(self._db.execute(query), key=lambda row: place[row.group_id])

    def _drop_too_small(self) -> None:
        too_small = select(_waiting.c.group_id).where(_waiting.c.num_episodes < MIN_GROUP_EPISODES, _IS_COMPLETE)
        self._drop(_IN_GROUP, Episode.group_id.in_(too_small), reason="group_too_small")

    def _drop(self, *which: Any, reason: str) -> None:
        dropped = {"status": EpisodeStatus.DROPPED, "drop_reason": reason}
        self._db.execute(update(Episode).where(*which).values(dropped))


def fit(groups: Mapping[str, int], batch: int) -> tuple[list[str], bool]:
    """The first groups (id → number of episodes) that fit in ``batch`` episodes, and whether they fill it.

    The first is taken whatever its size. Full: the next group does not fit, or nothing is left of the batch.
    """
    chosen: list[str] = []
    num_episodes = 0
    for group_id, size in groups.items():
        if chosen and num_episodes + size > batch:
            return chosen, True
        chosen.append(group_id)
        num_episodes += size
    return chosen, num_episodes >= batch
