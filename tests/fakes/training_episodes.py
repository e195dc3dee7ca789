"""Training episodes made up of random tokens: prompt, then actions and observations in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from online_agent.types import TrainingEpisode


def episode(
    token_ids: Sequence[int],
    mask: Sequence[int],
    *,
    reward: float = 1.0,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    temperature: float = 1.0,
    id: str = "e",
) -> TrainingEpisode:
    """An episode written out by hand; log-probs default to -1 and versions to 0 on actions."""
    is_action = np.array(mask, np.bool_)
    return TrainingEpisode(
        id=id,
        token_ids=np.array(token_ids, np.int32),
        action_mask=is_action,
        logprobs=np.where(is_action, -1.0 if logprobs is None else logprobs, 0).astype(np.float32),
        versions=np.where(is_action, 0 if versions is None else versions, -1).astype(np.int32),
        reward=reward,
        temperature=temperature,
    )


def random_episodes(
    num: int, vocab_size: int, *, seed: int = 0, version: int = 0, num_shared: int = 0, logprob: float | None = None
) -> list[TrainingEpisode]:
    """``num`` episodes of 12 to 40 tokens and 2 to 3 turns that begin with ``num_shared`` common tokens.

    Log-probs are those of a uniform policy unless given; rewards are 0 or 1.
    """
    rng = np.random.default_rng(seed)
    made = []
    for number in range(num):
        mask = [0] * (num_shared + int(rng.integers(2, 6)))
        for _ in range(int(rng.integers(2, 4))):
            mask += [1] * int(rng.integers(2, 6)) + [0] * int(rng.integers(1, 6))
        ids = rng.integers(0, vocab_size, len(mask))
        ids[:num_shared] = np.arange(num_shared) % vocab_size
        mu = -np.log(vocab_size) if logprob is None else logprob
        made.append(
            episode(
                ids.tolist(),
                mask,
                reward=float(rng.integers(0, 2)),
                logprobs=[mu] * len(mask),
                versions=[version] * len(mask),
                temperature=float(rng.choice([0.7, 1.0, 1.3])),
                id=f"e{number}",
            )
        )
    return made
