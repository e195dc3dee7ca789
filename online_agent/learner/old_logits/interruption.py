"""Route (c), interruption: before each update the engine is paused and what its version has sampled so far is scored
with the still-current weights; the swap to the new version resumes it.

No old weights are kept: a token's score is stored while its version is current, whether its episode is under way,
waits for grading or for a step, and read back when the episode is trained. What the current version samples later (a
pause that ended without a new version) is scored before the next update. The learner only writes to the database; the
process that owns the engine's calls does the pausing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from online_agent.learner.old_logits.protocol import OldLogitsCost
from online_agent.learner.old_logits.scoring import Mask, sampled_by
from online_agent.learner.old_logits.snapshot import num_missing
from online_agent.store.records import InterruptionState
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.types import Float32Array, TrainingEpisode

POLL_S = 0.02
ScoreCurrent = Callable[[Sequence[TrainingEpisode], Sequence[Mask]], list[Float32Array]]
"""(T,) float32 each: the current actor's log-probs at the chosen tokens, NaN elsewhere."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a step may wait for the engine to serve the current version, and then for the pause.

    ``every_versions``: the engine is given every so many-th version (see WeightsSettings).
    """

    serving_s: float = 15.0
    answer_s: float = 15.0
    every_versions: int = 1


class InterruptionRoute:
    def __init__(self, db: Database, score_current: ScoreCurrent, patience: Patience) -> None:
        self._db, self._score_current, self._patience = db, score_current, patience
        self._open: int | None = None
        self._open_version = -1
        self._reported = self._release_leftover()
        self._cost = OldLogitsCost(0.0, 0, 0.0, 0)

    def fill(self, episodes: Sequence[TrainingEpisode], *, version: int) -> list[TrainingEpisode]:
        started = time.perf_counter()
        if self._is_served(version):
            self._interrupt(version)
        num_bytes = self._score_what_is_held(version)
        with self._db.reading() as tx:
            filled = tx.old_logprobs.fill(episodes)
        num_bytes += sum(e.num_action_tokens for e in filled) * np.dtype(np.float32).itemsize
        self._cost = OldLogitsCost(
            time.perf_counter() - started, num_bytes, self._paused_seconds(), num_missing(filled)
        )
        return filled

    def settle(self, version: int) -> None:
        """A step that publishes nothing the engine will be given lets it go on with the weights it has."""
        with self._db.transaction() as tx:
            if self._open is not None and version < self._open_version + self._patience.every_versions:
                tx.interruptions.release(self._open)
            tx.old_logprobs.prune()
        self._open = None

    def cost(self) -> OldLogitsCost:
        return self._cost

    def close(self) -> None:
        """The engine is not kept waiting for a learner that has gone."""
        with self._db.transaction() as tx:
            if self._open is not None:
                tx.interruptions.release(self._open)
        self._open = None

    def _release_leftover(self) -> int:
        """An interruption that a dead learner left open is released; the number of the last one so far."""
        with self._db.transaction() as tx:
            left = tx.interruptions.current()
            if left is not None:
                tx.interruptions.release(left.number)
            ended = tx.interruptions.ended_after(0)
        return max((record.number for record in ended), default=0)

    def _is_served(self, version: int) -> bool:
        """Whether the engine samples from the current version; waits for a swap that is due."""
        deadline = time.monotonic() + self._patience.serving_s
        while True:
            with self._db.reading() as tx:
                serving = tx.weights.serving()
            behind = 0 if serving is None else version - serving.version
            if behind == 0 or behind < self._patience.every_versions or time.monotonic() > deadline:
                return serving is not None and behind == 0
            time.sleep(POLL_S)

    def _interrupt(self, version: int) -> None:
        """The engine is paused, or the request is withdrawn: then only what is stored as turns can be scored."""
        with self._db.transaction() as tx:
            number = tx.interruptions.ask(version)
        deadline = time.monotonic() + self._patience.answer_s
        while time.monotonic() < deadline:
            with self._db.reading() as tx:
                record = tx.interruptions.get(number)
            if record is not None and record.state is not InterruptionState.ASKED:
                self._open, self._open_version = number, version
                return
            time.sleep(POLL_S)
        with self._db.transaction() as tx:
            tx.interruptions.release(number)
        _log.warning("the engine was not paused in time", number=number, waited_s=self._patience.answer_s)

    def _score_what_is_held(self, version: int) -> int:
        """Every token of the current version has a stored score; returns the bytes that were added."""
        with self._db.reading() as tx:
            held = tx.old_logprobs.held_by(version)
        unscored = [(e, mask) for e in held if (mask := _unscored(e, version)).any()]
        if not unscored:
            return 0
        episodes, masks = [e for e, _ in unscored], [mask for _, mask in unscored]
        scored = self._score_current(episodes, masks)
        with self._db.transaction() as tx:
            return tx.old_logprobs.put(episodes, version, scored)

    def _paused_seconds(self) -> float:
        """Of the pauses that ended since the last report."""
        with self._db.reading() as tx:
            ended = tx.interruptions.ended_after(self._reported)
        self._reported = max((record.number for record in ended), default=self._reported)
        return sum(r.ended_at - r.paused_at for r in ended if r.ended_at is not None and r.paused_at is not None)


def _unscored(episode: TrainingEpisode, version: int) -> Mask:
    assert episode.old_logprobs is not None
    mask: Mask = sampled_by(episode, version) & np.isnan(episode.old_logprobs)
    return mask
