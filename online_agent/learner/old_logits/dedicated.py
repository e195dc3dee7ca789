"""Route (b), a dedicated model: a second process holds the versions of the window and scores while the actor trains.

The episodes that will make the next batch are sent ahead when a batch is handed to the trainer, so that a step waits
only for what came in between. What was scored ahead and not used in the next batch is kept until it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.protocol import OldLogitsCost
from online_agent.learner.old_logits.scoring import nothing_scored
from online_agent.learner.old_logits.second_model import SecondModel, SecondModelGone
from online_agent.learner.old_logits.snapshot import num_missing
from online_agent.telemetry.logging import get_logger
from online_agent.types import Float32Array, TrainingEpisode
from online_agent.weights.store import WeightStore

NUM_ATTEMPTS = 2
"""A process that dies under a request is started once more for it."""

_log = get_logger(__name__)


class DedicatedRoute:
    """``upcoming()`` gives the episodes that are next in the queue. The process is started by the first ``fill``."""

    def __init__(
        self,
        weights: WeightStore,
        settings: LearnerSettings,
        *,
        max_held_bytes: int,
        answer_timeout_s: float,
        replays_routing: bool = False,
        upcoming: Callable[[], Sequence[TrainingEpisode]] = tuple,
    ) -> None:
        self._weights, self._settings, self._replays_routing = weights, settings, replays_routing
        self._max_held_bytes, self._answer_timeout_s, self._upcoming = max_held_bytes, answer_timeout_s, upcoming
        self._model: SecondModel | None = None
        self._asked: list[TrainingEpisode] = []
        self._scored: dict[str, Float32Array] = {}
        self._held_bytes = 0
        self._cost = OldLogitsCost(0.0, 0, 0.0, 0)

    @property
    def pid(self) -> int | None:
        """Of the second process, None while there is none."""
        return None if self._model is None else self._model.process.pid

    def fill(self, episodes: Sequence[TrainingEpisode], *, version: int) -> list[TrainingEpisode]:
        started = time.perf_counter()
        serving_dir = self._weights.path(version) / "serving"
        self._collect()
        missing = [episode for episode in episodes if episode.id not in self._scored]
        for _ in range(NUM_ATTEMPTS):
            if not missing or (self._ask(missing, serving_dir) and self._collect()):
                break
        filled = [replace(e, old_logprobs=self._scored.pop(e.id, nothing_scored(e))) for e in episodes]
        self._look_ahead(serving_dir)
        self._cost = OldLogitsCost(time.perf_counter() - started, self._held_bytes, 0.0, num_missing(filled))
        return filled

    def settle(self, version: int) -> None:
        """Nothing is left over: what is being scored is for the next step."""

    def cost(self) -> OldLogitsCost:
        return self._cost

    def close(self) -> None:
        if self._model is not None:
            self._model.stop()
        self._model, self._asked = None, []

    def _look_ahead(self, serving_dir: Path) -> None:
        upcoming = list(self._upcoming())
        known = {episode.id for episode in upcoming}
        self._scored = {id: old for id, old in self._scored.items() if id in known}
        unscored = [episode for episode in upcoming if episode.id not in self._scored]
        if unscored:
            self._ask(unscored, serving_dir)

    def _ask(self, episodes: list[TrainingEpisode], serving_dir: Path) -> bool:
        if self._model is None:
            self._model = SecondModel(
                serving_dir,
                self._weights.root,
                self._settings,
                self._max_held_bytes,
                replays_routing=self._replays_routing,
            )
        try:
            self._model.ask(episodes)
        except SecondModelGone as error:
            self._lose(error)
            return False
        self._asked = episodes
        return True

    def _collect(self) -> bool:
        """Take the answer that is due, if any. False when the process is gone instead."""
        if not self._asked or self._model is None:
            return True
        try:
            scored = self._model.answer(self._answer_timeout_s)
        except SecondModelGone as error:
            self._lose(error)
            return False
        self._scored |= {e.id: old for e, old in zip(self._asked, scored.log_probs, strict=True)}
        self._held_bytes, self._asked = scored.held_bytes, []
        return True

    def _lose(self, error: SecondModelGone) -> None:
        _log.warning("the second model is gone", reason=str(error))
        self.close()
        self._held_bytes = 0
