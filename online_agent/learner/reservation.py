"""A step's episodes are claimed and the step is written down in one transaction: nobody else gets any of them."""

from __future__ import annotations

from online_agent.config.settings import Settings
from online_agent.store.records import FeedbackRule, StepNew
from online_agent.store.repositories.steps import step_identity
from online_agent.store.session import Database
from online_agent.types import TrainingEpisode

PROCESS_NAME = "learner"


def reserve_batch(
    db: Database, settings: Settings, *, version: int, fence: int, needs_experts: bool
) -> tuple[int, list[TrainingEpisode]] | None:
    """The step's number and its episodes; None when too few are ready for the learner at ``version``.

    ``needs_experts``: only episodes whose routing was recorded.
    """
    learner = settings.learner
    with db.transaction() as tx:
        step = tx.steps.next_step()
        episodes = tx.episodes.reserve(
            step,
            learner.batch_episodes,
            version,
            learner.max_staleness_versions,
            FeedbackRule(settings.feedback.rule),
            group_size=settings.recipe.group_size,
            needs_experts=needs_experts,
        )
        if not episodes:
            return None
        ids = [episode.id for episode in episodes]
        tx.steps.reserve(
            StepNew(
                step=step,
                episode_ids=ids,
                identity=step_identity(ids, learner.recipe, learner.seed),
                parent_version=version,
                fence=fence,
                owner=PROCESS_NAME,
                lease_s=learner.lease_s,
                recipe=learner.recipe,
                seed=learner.seed,
            )
        )
    return step, episodes
