"""The training queue: which graded episodes a step may take, and what becomes of them.

An episode waits in the queue while it is graded, of the train split, trainable, sampled at a temperature above 0, and
has action tokens. A reservation first drops, one by one and with the reason,

- ``stale:k``        k = current version - oldest version of its action tokens, more than ``max_staleness``;
- ``rolled_back:v``  it was under way while version v served, and a rollback has gone behind v;
- ``no_experts``     the recipe replays the engine's choice of experts, and not every token has one;

and marks as untrainable what its tenant does not give for training (see consent.py). Then it takes the oldest by time
of finishing, members of groups like all others. A recipe that compares the rollouts of a group names its group size,
and takes whole groups (see groups.py). Episodes outside the queue's rule, held-out ones among them, stay graded and
are never touched.
"""

from __future__ import annotations

from sqlalchemy import String, cast, func, insert, literal, select, text, update

from online_agent.errors import BadInput
from online_agent.store.models import Episode, Feedback, Step, StepEpisode, WeightVersion
from online_agent.store.models.episodes import QUEUED
from online_agent.store.records import CLIENT_ENV, FeedbackRule, QueueCounts
from online_agent.store.repositories.consent import HAS_CONSENT, NOT_OPTED_IN
from online_agent.store.repositories.groups import MIN_GROUP_EPISODES, GroupRows
from online_agent.store.repositories.layout import LAYOUT_COLUMNS
from online_agent.types import EpisodeStatus, FeedbackFate, StepStatus, TrainingEpisode

_QUEUED = (text(QUEUED),)


class ReservationRows(GroupRows):
    def queue(self, group_size: int | None = None) -> QueueCounts:
        """How much waits for a recipe of that group size, without judging staleness. Cheap enough to poll."""
        if group_size is None:
            of_all = select(func.count(), func.min(Episode.finished_at)).where(*_QUEUED)
            num_ready, oldest_at = self._db.execute(of_all).one()
        else:
            num_ready, oldest_at = self._ready_in_groups()
        ungraded = select(func.count()).where(Episode.status == EpisodeStatus.FINISHED, Episode.env != CLIENT_ENV)
        return QueueCounts(num_ready, int(self._db.execute(ungraded).scalar_one()), oldest_at)

    def reserve(
        self,
        step: int,
        batch: int,
        current_version: int,
        max_staleness: int,
        rule: FeedbackRule = FeedbackRule.MEAN_WITH_VERDICT,
        *,
        allow_fewer: bool = False,
        group_size: int | None = None,
        needs_experts: bool = False,
    ) -> list[TrainingEpisode]:
        """The ``batch`` oldest episodes of the queue, reserved for ``step`` with the reward they are trained with.

        A client's episode of several segments is as many rows, which count as such: the last one taken may bring more.

        Empty, reserving nothing, when fewer wait (unless ``allow_fewer``). The transaction must go on to
        ``tx.steps.reserve``: without the step's row it cannot commit.

        With ``group_size``, that of the recipe, these are whole groups, the oldest complete ones that fit in ``batch``
        episodes and at least one; a group counts whatever the size it was asked for in. What belongs to no group is
        dropped. With ``needs_experts``, so is an episode without the experts of every token before its last action.
        """
        if batch < 1 or max_staleness < 0:
            raise BadInput(f"batch must be >= 1 and max_staleness >= 0, got {batch} and {max_staleness}")
        if group_size is not None and group_size < MIN_GROUP_EPISODES:
            raise BadInput(f"group_size must be >= {MIN_GROUP_EPISODES}, got {group_size}", param="group_size")
        self._bar_without_consent()
        self._drop_stale(current_version, max_staleness)
        self._drop_rolled_back()
        oldest = self._oldest if group_size is None else self._oldest_groups
        episodes = oldest(batch, rule, allow_fewer=allow_fewer, needs_experts=needs_experts)
        if episodes:
            self._take(step, episodes)
        return episodes

    def _take(self, step: int, episodes: list[TrainingEpisode]) -> None:
        rewards = {row.episode_id: row.reward for row in episodes}  # rows of one episode share its reward
        taken = update(Episode).where(Episode.id.in_(rewards), Episode.status == EpisodeStatus.GRADED)
        self._db.execute(taken.values(status=EpisodeStatus.RESERVED, step=step))
        tenants = select(Episode.id, Episode.tenant_id).where(Episode.step == step)
        tenant_of = {row.id: row.tenant_id for row in self._db.execute(tenants)}
        rows = [
            {
                "step": step,
                "position": position,
                "episode_id": episode_id,
                "tenant_id": tenant_of[episode_id],
                "reward": reward,
                "is_committed": False,
            }
            for position, (episode_id, reward) in enumerate(rewards.items())
        ]
        self._db.execute(insert(StepEpisode), rows)

    def mark_trained(self, step: int) -> int:
        """The step's reserved episodes are trained; returns how many. A second training is refused by the database."""
        self._db.execute(update(StepEpisode).where(StepEpisode.step == step).values(is_committed=True))
        mine = (Episode.step == step, Episode.status == EpisodeStatus.RESERVED)
        trained = {"status": EpisodeStatus.TRAINED, "trained_at": self._now()}
        return int(self._db.execute(update(Episode).where(*mine).values(trained)).rowcount)

    def release(self, step: int) -> int:
        """The step's reserved episodes wait in the queue again, what came late for them counts; returns how many."""
        mine = (Episode.step == step, Episode.status == EpisodeStatus.RESERVED)
        self._db.execute(
            update(Feedback)
            .where(Feedback.episode_id.in_(select(Episode.id).where(*mine)), Feedback.fate == FeedbackFate.LATE)
            .values(fate=FeedbackFate.ACCEPTED, fate_reason=None)
        )
        waiting = {"status": EpisodeStatus.GRADED, "step": None}
        return int(self._db.execute(update(Episode).where(*mine).values(waiting)).rowcount)

    def drop_reserved(self, step: int, reason: str) -> int:
        """The step's reserved episodes are dropped with the reason; returns how many."""
        mine = (Episode.step == step, Episode.status == EpisodeStatus.RESERVED)
        dropped = {"status": EpisodeStatus.DROPPED, "drop_reason": reason}
        return int(self._db.execute(update(Episode).where(*mine).values(dropped)).rowcount)

    def trained_twice(self) -> int:
        """How many episodes are in more than one committed step. The unique index makes it 0; this counts rows."""
        repeated = (
            select(StepEpisode.episode_id)
            .join(Step, Step.step == StepEpisode.step)
            .where(Step.status == StepStatus.COMMITTED)
            .group_by(StepEpisode.episode_id)
            .having(func.count() > 1)
        )
        return int(self._db.execute(select(func.count()).select_from(repeated.subquery())).scalar_one())

    def _bar_without_consent(self) -> None:
        """What came into the queue past the mark of its tenant stays graded, marked."""
        self._db.execute(update(Episode).where(*_QUEUED, ~HAS_CONSENT).values(untrainable_reason=NOT_OPTED_IN))

    def _drop_stale(self, current_version: int, max_staleness: int) -> None:
        staleness = literal(current_version) - Episode.oldest_version
        reason = literal("stale:").concat(cast(staleness, String))
        self._db.execute(
            update(Episode)
            .where(*_QUEUED, Episode.oldest_version < current_version - max_staleness)
            .values(status=EpisodeStatus.DROPPED, drop_reason=reason)
        )

    def _drop_rolled_back(self) -> None:
        gone = (
            select(func.min(WeightVersion.version))
            .where(
                WeightVersion.is_rolled_back,
                WeightVersion.version >= Episode.oldest_version,
                WeightVersion.version <= Episode.newest_version,
            )
            .correlate(Episode)
            .scalar_subquery()
        )
        reason = literal("rolled_back:").concat(cast(gone, String))
        self._db.execute(
            update(Episode).where(*_QUEUED, gone.is_not(None)).values(status=EpisodeStatus.DROPPED, drop_reason=reason)
        )

    def _oldest(
        self, batch: int, rule: FeedbackRule, *, allow_fewer: bool, needs_experts: bool
    ) -> list[TrainingEpisode]:
        """The oldest of the queue that can be laid out. One that cannot is dropped and the next one takes its place.

        Empty when fewer than ``batch`` wait (unless ``allow_fewer``).
        """
        episodes: list[TrainingEpisode] = []
        after: tuple[float, str] | None = None
        while len(episodes) < batch:
            query = (
                select(*LAYOUT_COLUMNS)
                .where(*_QUEUED, HAS_CONSENT)
                .order_by(Episode.finished_at, Episode.id)
                .limit(batch - len(episodes))
                .with_for_update()
            )
            if after is not None:
                query = query.where(
                    (Episode.finished_at > after[0]) | ((Episode.finished_at == after[0]) & (Episode.id > after[1]))
                )
            rows = self._db.execute(query).all()
            if not rows:
                break
            after = (rows[-1].finished_at, rows[-1].id)
            episodes.extend(self._lay_out(rows, rule, needs_experts=needs_experts))
        return episodes if allow_fewer or len(episodes) >= batch else []
