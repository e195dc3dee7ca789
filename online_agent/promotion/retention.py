"""Which version directories stay on disk: what serves, waits, is pinned, may be rolled back to, and the newest few."""

from __future__ import annotations

from online_agent.config.settings import Settings
from online_agent.store.session import Database
from online_agent.weights.store import WeightStore


def scored_versions(settings: Settings) -> int:
    """How many of the newest versions a step may still score tokens under: those of the staleness window, with the
    current one and the one that is being made. 0 for a recipe that loads no old versions."""
    if settings.recipe.old_logits_route not in ("snapshot", "dedicated"):
        return 0
    return settings.learner.max_staleness_versions + 2


def prune_versions(db: Database, weights: WeightStore, keep_versions: int, window_versions: int = 0) -> list[int]:
    """Delete the directories that nothing needs and return their numbers. The rows stay.

    Of the versions that served before, the last ``keep_versions`` stay as targets of a rollback. The newest
    ``window_versions`` stay because tokens are still to be scored under them. A version that is being written has a
    number above all rows and is not touched.
    """
    with db.reading() as tx:
        kept = tx.weights.keep(max(keep_versions, window_versions), rollback_depth=keep_versions)
    return weights.prune(kept)
