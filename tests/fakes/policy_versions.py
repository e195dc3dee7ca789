"""Several published versions of a tiny policy, episodes that all of them sampled, and their log-probs in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from online_agent.types import TrainingEpisode
from online_agent.weights.store import WeightStore
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.fakes.training_episodes import random_episodes

VERSIONS = (3, 4, 5)
SCALE = 0.05
"""Of the random weights: the log-probs of different versions differ by tenths, so that a mix-up shows."""


def write_versions(root: Path, versions: Sequence[int]) -> WeightStore:
    """A store with these versions, each of random weights of its own."""
    store = WeightStore(root / "weights")
    for version in versions:
        store.import_seed(write_tiny_model(root / f"model{version}", seed=version, scale=SCALE), version)
    return store


def mixed_episodes(num: int, versions: Sequence[int], *, seed: int = 0) -> list[TrainingEpisode]:
    """Episodes whose tokens change version in the middle of a turn, as after a swap under traffic."""
    rng = np.random.default_rng(seed)
    made = []
    for episode in random_episodes(num, VOCAB_SIZE, seed=seed, num_shared=10):
        cuts = np.sort(rng.integers(0, len(episode.token_ids), len(versions) - 1))
        mine = np.asarray(versions)[np.searchsorted(cuts, np.arange(len(episode.token_ids)), side="right")]
        made.append(replace(episode, versions=np.where(episode.action_mask, mine, -1).astype(np.int32)))
    return made


def log_probs_in_float64(store: WeightStore, episode: TrainingEpisode) -> np.ndarray:
    """(T,) by transformers alone, one episode, one whole forward pass per version; NaN where not an action."""
    old = np.full(len(episode.token_ids), np.nan)
    ids = torch.from_numpy(episode.token_ids.astype(np.int64))
    for version in np.unique(episode.versions[episode.action_mask]):
        serving_dir = store.open(int(version)).serving_dir
        model = AutoModelForCausalLM.from_pretrained(serving_dir, dtype=torch.float64, local_files_only=True).eval()
        with torch.no_grad():
            logits_TV = model(ids[None]).logits[0] / episode.temperature
        logp_TV = torch.log_softmax(logits_TV, -1).numpy()
        for t in np.flatnonzero(episode.versions == version):
            old[t] = logp_TV[t - 1, episode.token_ids[t]]
    return old
