"""What the learner benchmark trains on: a model directory and a batch of episodes of the bug repair environment.

The conversations are the scripted worker's on tasks of the train split, laid out by the renderer that serves the
policy, so tokens, turn structure, the shared beginning and the mix of lengths are the environment's own. Tools have
their own names and the worker never gives up early. 48 of them: 110 to 252 tokens, median 158, 31 % of them actions;
32 that a service recorded in a demonstration: 102 to 265, median 145, 27 %.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from online_agent.learner.batching import num_fed_tokens
from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.build import CHECKPOINT_DIR
from online_agent.seed_policy.dataset import Example, as_example, demonstrations
from online_agent.seed_policy.habits import Habits
from online_agent.types import TrainingEpisode

PERSISTENT = Habits(
    own_names=1.0,
    lists_files=0.3,
    quits_after_reading_long=0.0,
    quits_after_reading_short=0.0,
    wrong_first_edit=0.5,
    quits_after_failed_test=0.0,
    misses_text=0.4,
    misses_again=0.5,
    quits_after_stale_edit=0.0,
    quits_after_error=0.0,
)
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A Qwen3 with the seed policy's vocabulary and ``num_layers`` layers of width ``hidden``."""

    hidden: int
    num_layers: int


def write_model(directory: Path, size: ModelSize | None) -> Path:
    """A Hugging Face directory: the shipped seed policy, or a random model of ``size`` with its tokenizer."""
    shutil.copytree(CHECKPOINT_DIR, directory)
    if size is None:
        return directory
    (directory / _WEIGHTS).unlink()
    written = json.loads((directory / "config.json").read_text())
    written |= {
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.hidden // written["head_dim"],
        "layer_types": ["full_attention"] * size.num_layers,
    }
    (directory / "config.json").write_text(json.dumps(written))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    return directory


def recorded_episodes(model_dir: Path, num: int, seed: int = 0) -> list[TrainingEpisode]:
    """``num`` episodes in arrival order with the log-probs of the model at ``model_dir`` and rewards 0 or 1."""
    renderer = ChatRenderer.load(model_dir)
    examples = [as_example(demo, renderer) for demo in islice(demonstrations(seed, PERSISTENT), num)]
    rng = np.random.default_rng(seed)
    episodes = [_episode(example, number, float(rng.integers(0, 2))) for number, example in enumerate(examples)]
    return scored(model_dir, episodes)


@torch.no_grad()
def scored(model_dir: Path, episodes: Sequence[TrainingEpisode]) -> list[TrainingEpisode]:
    """The episodes with each action's log-prob under the model at ``model_dir``."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
    model.eval()
    done = []
    for episode in episodes:
        ids_T = torch.from_numpy(episode.token_ids.astype(np.int64))
        logp_TV = model(input_ids=ids_T[None]).logits[0, :-1].log_softmax(-1)
        logprobs = np.zeros(len(ids_T), np.float32)
        logprobs[1:] = logp_TV.gather(1, ids_T[1:, None])[:, 0].numpy()
        done.append(replace(episode, logprobs=np.where(episode.action_mask, logprobs, 0).astype(np.float32)))
    return done


def num_real_tokens(episodes: Sequence[TrainingEpisode]) -> int:
    """Positions that any trainer must compute: of each episode those before its last action token."""
    return sum(num_fed_tokens(episode) for episode in episodes)


def _episode(example: Example, number: int, reward: float) -> TrainingEpisode:
    return TrainingEpisode(
        id=f"e{number}",
        token_ids=example.token_ids,
        action_mask=example.is_action,
        logprobs=np.zeros(len(example.token_ids), np.float32),
        versions=np.where(example.is_action, 0, -1).astype(np.int32),
        reward=reward,
        temperature=1.0,
        task_id=f"task{number}",
    )
