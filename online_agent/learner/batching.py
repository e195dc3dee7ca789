"""Episodes to micro-batches: sorted by length, right padded, only as long as the last action needs.

Axes: B rows (one episode each), T positions fed to the networks, P = T + 1 tokens of the padded rows, N action
tokens of the micro-batch in row-major order. Token p is predicted from position p - 1, so the last token of a row is
a target and is never fed; what follows the last action token is not looked at by anything and is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from online_agent.algo.advantages import terminal_rewards
from online_agent.learner.buckets import least_padded
from online_agent.learner.routing import rows_of_experts
from online_agent.types import TrainingEpisode

MIN_SHARED_TOKENS = 8


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of similar length. ``episode_B`` numbers them in the step's batch; empty for a filler.

    positions_N index the B*T fed positions: the state *before* each action token. The first ``num_shared`` tokens (and
    their experts) are the same in all rows, and no position lies in them. experts_BTLK (uint8) are those that the
    engine used at the fed positions; None unless all rows have them.
    """

    episode_B: tuple[int, ...]
    token_ids_BT: Tensor
    action_mask_BP: Tensor
    rewards_BP: Tensor
    positions_N: Tensor
    targets_N: Tensor
    logp_mu_N: Tensor
    versions_N: Tensor
    temperature_N: Tensor
    num_shared: int
    experts_BTLK: Tensor | None = None

    @property
    def num_actions_B(self) -> Tensor:
        return self.action_mask_BP.sum(1)

    @property
    def num_padded_tokens(self) -> int:
        return self.token_ids_BT.numel()

    def to_rows(self, x_N: Tensor) -> Tensor:
        """(B, P): ``x_N`` at the action tokens, 0 elsewhere."""
        rows_BP = x_N.new_zeros(self.action_mask_BP.shape)
        rows_BP[self.action_mask_BP] = x_N
        return rows_BP


def unfit_reason(episodes: Sequence[TrainingEpisode], vocab_size: int) -> str | None:
    """Why this batch cannot be trained on as it is, naming the episode; None when it can."""
    if not any(episode.action_mask.any() for episode in episodes):
        return "empty batch: no action token"
    for episode in episodes:
        fault = _fault(episode, vocab_size)
        if fault:
            return f"episode {episode.id}: {fault}"
    return None


def num_fed_tokens(episode: TrainingEpisode) -> int:
    """Positions of the episode that are fed: up to the one before its last action token."""
    actions = np.flatnonzero(episode.action_mask)
    return int(actions[-1]) if len(actions) else 0


def plan(
    episodes: Sequence[TrainingEpisode], *, max_tokens: int, rank: int = 0, world_size: int = 1
) -> list[tuple[int, ...]]:
    """The episodes of each micro-batch of this rank, longest first, B*T <= ``max_tokens`` (one row always fits).

    Rows are dealt to ranks in turn. All ranks get the same number of micro-batches, since each backward pass is a
    collective; missing ones are fillers without episodes. Episodes without an action token are left out.
    """
    lengths = [num_fed_tokens(episode) for episode in episodes]
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: (-lengths[i], i))
    per_rank = [least_padded(order[r::world_size], lengths, max_tokens) for r in range(world_size)]
    num_batches = max(len(batches) for batches in per_rank)
    return per_rank[rank] + [()] * (num_batches - len(per_rank[rank]))


def collate(episodes: Sequence[TrainingEpisode], rows: tuple[int, ...], device: torch.device) -> MicroBatch:
    """The micro-batch of ``rows``; a filler (one token, no action) when there are none."""
    chosen = [episodes[i] for i in rows]
    num_rows, longest = max(len(rows), 1), max([num_fed_tokens(e) for e in chosen], default=1)
    token_ids = np.zeros((num_rows, longest + 1), np.int64)
    mask = np.zeros((num_rows, longest + 1), np.bool_)
    logp_mu = np.zeros((num_rows, longest + 1), np.float32)
    versions = np.full((num_rows, longest + 1), -1, np.int64)
    for row, episode in enumerate(chosen):
        end = num_fed_tokens(episode) + 1
        token_ids[row, :end] = episode.token_ids[:end]
        mask[row, :end] = episode.action_mask[:end]
        logp_mu[row, :end] = episode.logprobs[:end]
        versions[row, :end] = episode.versions[:end]
    at_row, at_token = np.nonzero(mask)
    temperature = np.array([e.temperature for e in chosen], np.float32)
    rewards_B = torch.tensor([e.reward for e in chosen] or [0.0], dtype=torch.float32)
    mask_BP = torch.from_numpy(mask)
    experts = rows_of_experts(chosen, [num_fed_tokens(e) for e in chosen], longest)
    return MicroBatch(
        episode_B=rows,
        token_ids_BT=torch.from_numpy(token_ids[:, :-1].copy()).to(device),
        action_mask_BP=mask_BP.to(device),
        rewards_BP=terminal_rewards(rewards_B, mask_BP).to(device),
        positions_N=torch.from_numpy(at_row * longest + at_token - 1).to(device),
        targets_N=torch.from_numpy(token_ids[mask]).to(device),
        logp_mu_N=torch.from_numpy(logp_mu[mask]).to(device),
        versions_N=torch.from_numpy(versions[mask]).to(device),
        temperature_N=torch.from_numpy(temperature[at_row]).to(device),
        num_shared=num_shared_tokens(token_ids, int(at_token.min()), experts) if len(rows) > 1 else 0,
        experts_BTLK=None if experts is None else torch.from_numpy(experts).to(device),
    )


def non_pad_share(episodes: Sequence[TrainingEpisode], batches: Sequence[MicroBatch]) -> float:
    """Of the positions that these batches compute, the share that is not padding."""
    num_fed = sum(num_fed_tokens(episodes[i]) for batch in batches for i in batch.episode_B)
    return num_fed / sum(batch.num_padded_tokens for batch in batches)


def num_shared_tokens(
    token_ids_BP: npt.NDArray[np.int64], first_action: int, experts_BTLK: npt.NDArray[np.uint8] | None = None
) -> int:
    """How many first tokens, with their experts, all rows have in common, up to the one that the first action is
    predicted from. 0 where too few to pay for a pass of their own.
    """
    differ_P = (token_ids_BP != token_ids_BP[:1]).any(0)
    if experts_BTLK is not None:
        differ_P[:-1] |= (experts_BTLK != experts_BTLK[:1]).any((0, 2, 3))
    differs = np.flatnonzero(differ_P)
    common = min(int(differs[0]) if len(differs) else token_ids_BP.shape[1], first_action - 1)
    return common if common >= MIN_SHARED_TOKENS else 0


def _fault(episode: TrainingEpisode, vocab_size: int) -> str | None:
    if not np.isfinite(episode.reward):
        return f"reward is {episode.reward}"
    if not np.isfinite(episode.logprobs[episode.action_mask]).all():
        return "a rollout log-prob is not finite"
    if not episode.temperature > 0:
        return f"temperature {episode.temperature}: greedy tokens have no log-prob to learn from"
    if len(episode.action_mask) and episode.action_mask[0]:
        return "its first token is an action: nothing stands before it"
    if len(episode.token_ids) and not 0 <= int(episode.token_ids.min()) <= int(episode.token_ids.max()) < vocab_size:
        return f"a token id is outside the vocabulary of {vocab_size}"
    return None
