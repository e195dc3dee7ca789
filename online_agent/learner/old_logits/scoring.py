"""Log-probs of chosen action tokens under given weights: what all routes share, so that they agree.

Axes: T tokens of an episode, N chosen tokens of a micro-batch. A token is chosen by a mask over the episode; rows are
cut after their last chosen token and logits are made at chosen tokens only, so a version that sampled little of an
episode costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from online_agent.config.training import LearnerSettings
from online_agent.errors import CorruptVersion
from online_agent.learner.batching import MicroBatch, collate, plan
from online_agent.learner.expert_layout import fuse_experts
from online_agent.learner.lora import merged_weights
from online_agent.learner.models import Actor, load_causal_lm
from online_agent.learner.ranks import Ranks
from online_agent.learner.reference import policy_inputs
from online_agent.types import Float32Array, TrainingEpisode
from online_agent.weights.adapter import is_adapter

Mask = npt.NDArray[np.bool_]
LogProbs = Callable[[MicroBatch], Tensor]


def nothing_scored(episode: TrainingEpisode) -> Float32Array:
    """(T,) NaN."""
    return np.full(len(episode.token_ids), np.nan, np.float32)


def sampled_by(episode: TrainingEpisode, version: int) -> Mask:
    """(T,) the action tokens that ``version`` sampled."""
    mask: Mask = episode.action_mask & (episode.versions == version)
    return mask


@torch.no_grad()
def score(
    log_probs: LogProbs,
    episodes: Sequence[TrainingEpisode],
    chosen: Sequence[Mask],
    *,
    max_tokens: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
) -> list[Float32Array]:
    """(T,) float32 each: ``log_probs`` at the chosen tokens, NaN elsewhere and in the share of other ranks.

    Every rank makes the same number of calls of ``log_probs``, which may be a collective.
    """
    scored = [nothing_scored(episode) for episode in episodes]
    asked = [replace(episode, action_mask=mask) for episode, mask in zip(episodes, chosen, strict=True)]
    for rows in plan(asked, max_tokens=max_tokens, rank=rank, world_size=world_size):
        batch = collate(asked, rows, device)
        logp_N = log_probs(batch).float().cpu().numpy()
        at = 0
        for i in rows:
            count = int(asked[i].action_mask.sum())
            scored[i][asked[i].action_mask] = logp_N[at : at + count]
            at += count
    return scored


def score_on_all_ranks(
    log_probs: LogProbs, episodes: Sequence[TrainingEpisode], chosen: Sequence[Mask], *, max_tokens: int, ranks: Ranks
) -> list[Float32Array]:
    """``score`` with the work dealt to all ranks and the whole result on each. A collective."""
    own = score(
        log_probs,
        episodes,
        chosen,
        max_tokens=max_tokens,
        device=ranks.device,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    if ranks.world_size == 1 or not own:
        return own
    summed_S = ranks.sum(torch.from_numpy(np.nan_to_num(np.concatenate(own))).to(ranks.device)).cpu().numpy()
    whole = np.split(summed_S, np.cumsum([len(logp) for logp in own])[:-1])
    return [np.where(mask, logp, np.nan).astype(np.float32) for mask, logp in zip(chosen, whole, strict=True)]


class Scorer:
    """A policy network of its own whose weights are exchanged in place. ``replays_routing`` as in the recipe."""

    def __init__(self, model_dir: Path, settings: LearnerSettings, *, replays_routing: bool = False) -> None:
        self._replays_routing = replays_routing
        self._device = torch.device(settings.device)
        self._max_tokens = settings.micro_batch_tokens
        self._is_autocast = settings.dtype == "bfloat16"
        self._network = Actor(load_causal_lm(model_dir)).to(self._device).requires_grad_(False).eval()
        self._parameters = dict(self._network.causal_lm.named_parameters())

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._parameters.values())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The network has these weights, named as ``read_weights`` names them.

        Raises CorruptVersion when one is missing or of another shape; the network is then of no version.
        """
        for name, parameter in self._parameters.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != parameter.shape:
                got = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
                raise CorruptVersion(f"{name} is {got}, the policy wants {tuple(parameter.shape)}")
            parameter.copy_(tensor)

    def score(self, episodes: Sequence[TrainingEpisode], chosen: Sequence[Mask]) -> list[Float32Array]:
        """(T,) float32 each, NaN where not chosen."""
        return score(self._log_probs, episodes, chosen, max_tokens=self._max_tokens, device=self._device)

    def _log_probs(self, batch: MicroBatch) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_autocast):
            logp_N: Tensor = self._network(*policy_inputs(batch, self._replays_routing))
        return logp_N


def read_weights(serving_dir: Path) -> dict[str, Tensor]:
    """The tensors of a served version as training names them, fp32. Raises CorruptVersion where they cannot be read."""
    if is_adapter(serving_dir):
        return {name: tensor.float() for name, tensor in merged_weights(serving_dir).items()}
    tensors: dict[str, Tensor] = {}
    try:
        for shard in sorted(serving_dir.glob("*.safetensors")):
            tensors.update(load_file(shard))
        fused = fuse_experts(tensors)
    except (OSError, SafetensorError, KeyError) as error:
        raise CorruptVersion(f"cannot read the weights in {serving_dir.name}: {error}") from error
    return {name: tensor.float() for name, tensor in fused.items()}
