"""What the ratio is taken against: the log-probs of the recipe's reference, per micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from online_agent.algo.references import linear_prox, loglinear_prox
from online_agent.learner.batching import MicroBatch
from online_agent.recipes.parts import EngineLogProbs, Ewma, ExactOld, LinearProx, LogLinearProx, Recomputed, Reference
from online_agent.types import TrainingEpisode


@dataclass(frozen=True, slots=True)
class Anchors:
    """Per action token (N,): log-probs of the reference, None where the engine's stand in, and where they are known.

    An unknown one holds the engine's log-prob, so that it is finite; its token does not train.
    """

    logp_N: Tensor | None
    is_known_N: Tensor


class Proximal:
    """Log-probs of one kind of reference. ``average`` evaluates the EWMA of the weights, without gradient."""

    def __init__(self, reference: Reference, average: Callable[[MicroBatch], Tensor]) -> None:
        self._reference = reference
        self._average = average

    def fixed(self, batch: MicroBatch, episodes: Sequence[TrainingEpisode]) -> Tensor | None:
        """What does not depend on the policy being trained, so that one evaluation per step is enough."""
        match self._reference:
            case Ewma():
                return self._average(batch)
            case ExactOld():
                return old_log_probs(batch, episodes)
            case _:
                return None

    def anchors(self, batch: MicroBatch, logp_N: Tensor, fixed_N: Tensor | None) -> Anchors:
        """``logp_N``: the policy's own log-probs, before this step's update."""
        everywhere_N = torch.ones_like(batch.logp_mu_N, dtype=torch.bool)
        ours_N, reference = logp_N.detach(), self._reference
        match reference:
            case EngineLogProbs():
                return Anchors(None, everywhere_N)
            case Ewma():
                return Anchors(fixed_N, everywhere_N)
            case ExactOld():
                assert fixed_N is not None
                is_known_N = ~torch.isnan(fixed_N)
                return Anchors(torch.where(is_known_N, fixed_N, batch.logp_mu_N).to(ours_N.dtype), is_known_N)
            case LinearProx():
                return Anchors(linear_prox(ours_N, batch.logp_mu_N, weight_on_mu=reference.weight_on_mu), everywhere_N)
            case LogLinearProx():
                return Anchors(
                    loglinear_prox(ours_N, batch.logp_mu_N, weight_on_mu=reference.weight_on_mu), everywhere_N
                )
            case Recomputed():
                return Anchors(ours_N, everywhere_N)


def old_log_probs(batch: MicroBatch, episodes: Sequence[TrainingEpisode]) -> Tensor:
    """(N,) the old log-probs of the micro-batch's action tokens, NaN where none is known."""
    columns = [_old_column(episodes[i]) for i in batch.episode_B]
    joined = np.concatenate(columns) if columns else np.zeros(0, np.float32)
    return torch.from_numpy(joined).to(batch.logp_mu_N.device)


def _old_column(episode: TrainingEpisode) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if episode.old_logprobs is None:
        return np.full(episode.num_action_tokens, np.nan, np.float32)
    return episode.old_logprobs[episode.action_mask].astype(np.float32)
