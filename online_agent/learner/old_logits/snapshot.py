"""Route (a), snapshots: the weights of every version in the batch are loaded again, each token is scored under its own.

Needs nothing but the version directories, which retention keeps for the whole staleness window. Costs one forward pass
over the prefix of each episode per version in it, and one read from disk of each version that is not in memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from online_agent.errors import CorruptVersion
from online_agent.learner.old_logits.protocol import OldLogitsCost
from online_agent.learner.old_logits.scoring import Scorer, nothing_scored, sampled_by
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.telemetry.logging import get_logger
from online_agent.types import Float32Array, TrainingEpisode

_log = get_logger(__name__)


def score_each_under_its_own(
    scorer: Scorer, window: VersionWindow, episodes: Sequence[TrainingEpisode]
) -> list[Float32Array]:
    """(T,) float32 per episode: the log-prob of each action token under the version that sampled it.

    NaN elsewhere, and for the tokens of a version whose weights are gone.
    """
    scored = [nothing_scored(episode) for episode in episodes]
    for version in versions_in(episodes):
        masks = [sampled_by(episode, version) for episode in episodes]
        rows = [i for i, mask in enumerate(masks) if mask.any()]
        try:
            scorer.load(window.weights_of(version))
        except CorruptVersion as error:
            num_tokens = sum(int(masks[i].sum()) for i in rows)
            _log.warning(
                "version gone, its tokens stay unscored", version=version, tokens=num_tokens, reason=str(error)
            )
            continue
        for i, logp in zip(rows, scorer.score([episodes[i] for i in rows], [masks[i] for i in rows]), strict=True):
            scored[i][masks[i]] = logp[masks[i]]
    return scored


def versions_in(episodes: Sequence[TrainingEpisode]) -> list[int]:
    """The versions that sampled any of the action tokens, oldest first."""
    sampled = [episode.versions[episode.action_mask] for episode in episodes]
    return np.unique(np.concatenate(sampled)).tolist() if sampled else []


def num_missing(episodes: Sequence[TrainingEpisode]) -> int:
    """Action tokens without an old log-prob."""
    return sum(
        e.num_action_tokens if e.old_logprobs is None else int(np.isnan(e.old_logprobs[e.action_mask]).sum())
        for e in episodes
    )


class SnapshotRoute:
    def __init__(self, scorer: Scorer, window: VersionWindow) -> None:
        self._scorer, self._window = scorer, window
        self._cost = OldLogitsCost(0.0, 0, 0.0, 0)

    def fill(self, episodes: Sequence[TrainingEpisode], *, version: int) -> list[TrainingEpisode]:
        started = time.perf_counter()
        scored = score_each_under_its_own(self._scorer, self._window, episodes)
        filled = [replace(e, old_logprobs=old) for e, old in zip(episodes, scored, strict=True)]
        self._cost = OldLogitsCost(
            seconds=time.perf_counter() - started,
            bytes=self._window.size_bytes + self._scorer.size_bytes,
            paused_seconds=0.0,
            missing_tokens=num_missing(filled),
        )
        return filled

    def settle(self, version: int) -> None:
        """Nothing is left over between steps."""

    def cost(self) -> OldLogitsCost:
        return self._cost

    def close(self) -> None:
        """Nothing is open."""
