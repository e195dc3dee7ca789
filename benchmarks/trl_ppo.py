"""TRL's nearest job: one update of ``trl.experimental.ppo.PPOTrainer`` on episodes that were sampled before.

PPO is the trainer of TRL that updates a policy and a value network together; it left TRL after 1.12. ``train`` runs
as it stands, with two of its functions replaced, so that nothing is sampled inside the measurement: ``generate`` of a
batch returns the recorded episodes and the logits that sampled them, and the reward model is a table of the recorded
rewards. What is inside: reference and value scoring, GAE, ``num_ppo_epochs`` policy and value updates.

Set in its favour: no gradient checkpointing, no KL (its reference pass cannot be left out), the value network's
embeddings and attention frozen as in our critic, rows of a micro-batch as many as the plain loop's. It takes every
token after the prompt for an action, observations too: it has no mask.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.plain_torch import is_frozen
from online_agent.config.training import LearnerSettings
from online_agent.types import TrainingEpisode


class TrlPpo:
    """One PPOTrainer of the model at ``model_dir``; ``update`` is one step on the batch it was made for."""

    def __init__(
        self,
        model_dir: Path,
        settings: LearnerSettings,
        episodes: Sequence[TrainingEpisode],
        work_dir: Path,
        epochs: int,
    ) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, padding_side="left")
        policy: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
        prompts = [[int(i) for i in e.token_ids[: e.action_mask.argmax()]] for e in episodes]
        rows = max(settings.micro_batch_tokens // max(len(e.token_ids) for e in episodes), 1)
        rows = next(r for r in range(rows, 0, -1) if len(episodes) % r == 0)
        self.recorded = Recorded(policy, episodes, tokenizer.pad_token_id, rows)
        self._trainer = PPOTrainer(
            args=PPOConfig(
                output_dir=str(work_dir),
                total_episodes=len(episodes),
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=len(episodes) // rows,
                num_mini_batches=1,
                num_ppo_epochs=epochs,
                local_rollout_forward_batch_size=rows,
                learning_rate=settings.actor_lr,
                kl_coef=0.0,
                temperature=1.0,
                num_sample_generations=0,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            processing_class=tokenizer,
            model=policy,
            ref_model=None,
            reward_model=self.recorded,
            value_model=_value_model(model_dir),
            train_dataset=[{"input_ids": prompt} for prompt in prompts],
        )
        self._module = ppo_trainer

    def update(self) -> None:
        """One whole ``train`` of one batch."""
        module, recorded = self._module, self.recorded
        sample, score = module.batch_generation, module.get_reward
        module.batch_generation = recorded.replay
        module.get_reward = lambda model, *args: recorded.score(*args) if model is recorded else score(model, *args)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._trainer.train()
        finally:
            module.batch_generation, module.get_reward = sample, score


class Recorded(nn.Module):
    """Stands where TRL samples and scores: knows each prompt's response, its logits and its reward."""

    def __init__(self, policy: Any, episodes: Sequence[TrainingEpisode], pad_id: int, rows: int) -> None:
        super().__init__()
        self._pad_id = pad_id
        starts = [int(e.action_mask.argmax()) for e in episodes]
        longest = max(len(e.token_ids) - start for e, start in zip(episodes, starts, strict=True))
        self._responses: dict[tuple[int, ...], tuple[Tensor, Tensor, float]] = {}
        for episode, start in zip(episodes, starts, strict=True):
            ids_T = torch.from_numpy(episode.token_ids.astype("int64"))
            with torch.no_grad():
                logits_TV = policy(input_ids=ids_T[None]).logits[0, start - 1 : -1]
            missing = longest - (len(ids_T) - start)
            response = nn.functional.pad(ids_T[start:], (0, missing), value=pad_id)
            logits = nn.functional.pad(logits_TV, (0, 0, 0, missing))
            self._responses[tuple(ids_T[:start].tolist())] = (response, logits, episode.reward)

    def replay(self, model: Any, queries_BQ: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Queries with their responses, and the logits of the responses, in place of sampling."""
        found = [self._of(query_Q) for query_Q in queries_BQ]
        responses_BR = torch.stack([response for response, _, _ in found])
        return torch.cat([queries_BQ, responses_BR], 1), torch.stack([logits for _, logits, _ in found])

    def score(self, query_responses_BT: Tensor, pad_id: int, context_length: int) -> tuple[None, Tensor, None]:
        """The recorded rewards (B,)."""
        rewards = [self._of(row_T[:context_length])[2] for row_T in query_responses_BT]
        return None, torch.tensor(rewards, dtype=torch.float32), None

    def _of(self, query_Q: Tensor) -> tuple[Tensor, Tensor, float]:
        return self._responses[tuple(query_Q[query_Q != self._pad_id].tolist())]


def _value_model(model_dir: Path) -> Any:
    """A copy of the policy's backbone with a scalar head that starts at 0, frozen where our critic is."""
    causal_lm = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
    config = copy.deepcopy(causal_lm.config)
    config.num_labels = 1
    model: Any = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    model.model.load_state_dict(causal_lm.model.state_dict())
    nn.init.zeros_(model.score.weight)
    for name, parameter in model.model.named_parameters():
        parameter.requires_grad_(not is_frozen(name))
    return model
