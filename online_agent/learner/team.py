"""The ranks of one learner act as one trainer: rank 0 decides, the others repeat each of its calls.

Rank 0 talks to the database and the weights directory through ``Team``; every other rank runs ``follow``. With one
rank ``Team`` adds nothing. Messages go over the learner's own process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from online_agent.learner.old_logits.scoring import Mask
from online_agent.learner.report import ReferenceReset, StepReport
from online_agent.learner.trainer import PolicyTrainer
from online_agent.types import Float32Array, TrainingEpisode

_STOP = "stop"


class Team:
    """``PolicyTrainer`` on all ranks, called from rank 0."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        assert trainer.ranks.is_first, "only rank 0 leads"
        self._trainer = trainer

    @property
    def is_warming_up(self) -> bool:
        return self._trainer.is_warming_up

    def step(self, episodes: Sequence[TrainingEpisode], *, version: int, is_warmup: bool) -> StepReport:
        self._tell("step", episodes, version=version, is_warmup=is_warmup)
        return self._trainer.step(episodes, version=version, is_warmup=is_warmup)

    def log_probs(self, episodes: Sequence[TrainingEpisode], chosen: Sequence[Mask]) -> list[Float32Array]:
        self._tell("log_probs", episodes, chosen)
        return self._trainer.log_probs(episodes, chosen)

    def reset_reference(self, cause: str) -> ReferenceReset:
        self._tell("reset_reference", cause)
        return self._trainer.reset_reference(cause)

    def export(self, directory: Path) -> None:
        self._tell("export", directory)
        self._trainer.export(directory)

    def restore(self, directory: Path) -> None:
        self._tell("restore", directory)
        self._trainer.restore(directory)

    def dismiss(self) -> None:
        """The other ranks leave ``follow``."""
        self._trainer.ranks.broadcast((_STOP, (), {}))

    def _tell(self, method: str, *args: object, **kwargs: object) -> None:
        self._trainer.ranks.broadcast((method, args, kwargs))


def follow(trainer: PolicyTrainer) -> None:
    """Repeat what rank 0 does until it dismisses. For ranks above 0."""
    while True:
        method, args, kwargs = trainer.ranks.broadcast()
        if method == _STOP:
            return
        getattr(trainer, method)(*args, **kwargs)
