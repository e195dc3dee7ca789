"""The process that holds a second policy and scores episodes while the learner does other work.

One request at a time over a pipe that only the learner holds: when the learner is gone, however it went, the pipe
ends and so does this process.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.scoring import Scorer
from online_agent.learner.old_logits.snapshot import score_each_under_its_own
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.types import Float32Array, TrainingEpisode
from online_agent.weights.store import WeightStore

_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Scored:
    """(T,) float32 per episode asked for, and the memory of the weights held for it."""

    log_probs: list[Float32Array]
    held_bytes: int


class SecondModelGone(Exception):
    """It died, or did not answer in time and was killed."""


class SecondModel:
    """A running process; ``ask`` and ``answer`` alternate."""

    def __init__(
        self,
        model_dir: Path,
        weights_root: Path,
        settings: LearnerSettings,
        max_held_bytes: int,
        *,
        replays_routing: bool = False,
    ) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve,
            args=(theirs, model_dir, weights_root, settings, max_held_bytes, replays_routing),
            name="old logits",
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def ask(self, episodes: Sequence[TrainingEpisode]) -> None:
        """Start scoring. Raises SecondModelGone."""
        try:
            self._connection.send(list(episodes))
        except OSError as error:
            raise SecondModelGone(f"its pipe is broken: {error}") from error

    def answer(self, timeout_s: float) -> Scored:
        """What the last ``ask`` gave. Raises SecondModelGone."""
        try:
            if not self._connection.poll(timeout_s):
                self.kill()
                raise SecondModelGone(f"no answer within {timeout_s:.0f} s")
            scored: Scored = self._connection.recv()
        except (EOFError, OSError) as error:
            self.process.join(_STOP_TIMEOUT_S)
            raise SecondModelGone(f"it ended with exit code {self.process.exitcode}") from error
        return scored

    def stop(self) -> None:
        """The pipe is closed, the process gone."""
        self._connection.close()
        self.process.join(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(_STOP_TIMEOUT_S)


def _serve(
    connection: Connection,
    model_dir: Path,
    weights_root: Path,
    settings: LearnerSettings,
    max_held_bytes: int,
    replays_routing: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the learner, which ends this process
    torch.set_num_threads(1)
    scorer = Scorer(model_dir, settings, replays_routing=replays_routing)
    window = VersionWindow(WeightStore(weights_root), max_held_bytes)
    while True:
        try:
            episodes = connection.recv()
        except (EOFError, ConnectionResetError):  # the learner closed the pipe, with or without an answer left in it
            return
        log_probs = score_each_under_its_own(scorer, window, episodes)
        try:
            connection.send(Scored(log_probs, window.size_bytes + scorer.size_bytes))
        except BrokenPipeError:
            return
