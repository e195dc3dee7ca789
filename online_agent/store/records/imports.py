"""Episodes that people bring from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.types import Verdict
from online_agent.store.records.episodes import EpisodeNew, TurnNew
from online_agent.types import StopReason

MAX_IMPORT_EPISODES = 1000


@dataclass(frozen=True, slots=True)
class ImportNew:
    """A finished episode. ``client_id`` is its owner's id for it; ``content_hash`` tells a repeat from another one.

    Without a verdict it is kept and never trained on.
    """

    client_id: str
    content_hash: str
    episode: EpisodeNew
    turns: Sequence[TurnNew]
    verdict: Verdict | None
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """``is_new`` is False for one that was brought before; what became of it since is not told."""

    client_id: str
    episode_id: str
    is_new: bool
    untrainable_reason: str | None = None
