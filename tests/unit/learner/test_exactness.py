"""One step of every recipe, in float64, against NumPy that shares nothing with it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from online_agent.config.training import LearnerSettings
from online_agent.learner import networks
from online_agent.learner.models import Critic
from online_agent.learner.report import MetricSheet
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import RECIPES, find_recipe
from online_agent.recipes.parts import Ewma, ExactOld, LinearProx, LogLinearProx, Recomputed
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.float64_engine import Float64Engine
from tests.fakes.plain_objectives import PlainEpisode, advantages, loss_and_gradient, targets
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

pytestmark = SILENCED
NUM_EPISODES = 8


@pytest.fixture
def make_trainer(model_dir, monkeypatch):
    """A trainer in float64 whose critic is not constant and whose average is not the actor."""
    monkeypatch.setattr(networks, "ZeroEngine", Float64Engine)
    monkeypatch.setattr(networks, "load_causal_lm", lambda path: double_model(path))

    def make(name: str, micro_batch_tokens: int = 60) -> PolicyTrainer:
        settings = LearnerSettings(critic_warmup_steps=0, micro_batch_tokens=micro_batch_tokens, max_masked_share=1.0)
        trainer = PolicyTrainer(model_dir, settings, find_recipe(name))
        moved = {n: p + 0.02 * noise_like(p, n) for n, p in trainer.actor.parameters().items()}
        trainer.reference.begin(moved)
        if trainer.critic is not None:
            head = trainer.critic.network.head
            head.weight.data = noise_like(head.weight, "head") * 0.2
        return trainer

    return make


def double_model(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="sdpa")
    model.config.use_cache = False
    return model


def noise_like(p, name):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(p.shape, generator=generator, dtype=torch.float64)


def log_probs(causal_lm, e):
    """(A,) one episode alone, all logits."""
    logits_TV = causal_lm(input_ids=torch.from_numpy(e.token_ids).long()[None]).logits[0]
    actions = np.flatnonzero(e.action_mask)
    logp_TV = torch.log_softmax(logits_TV[actions - 1] / float(np.float32(e.temperature)), -1)
    return logp_TV[range(len(actions)), e.token_ids[actions]]


def values(critic: Critic, e):
    """(T,) value of the state before each token; nothing stands before the first."""
    with torch.no_grad():
        hidden_TH = critic.backbone(input_ids=torch.from_numpy(e.token_ids).long()[None]).last_hidden_state[0]
        after_T = critic.head(hidden_TH)[:, 0].numpy()
    return np.concatenate([[0.0], after_T[:-1]])


def rollout(trainer, spread):
    """Episodes in two groups whose engine and old log-probs lie up to ``spread`` nats around the policy's."""
    rng = np.random.default_rng(3)
    made = []
    for i, e in enumerate(random_episodes(NUM_EPISODES, VOCAB_SIZE, seed=3)):
        columns = {}
        for name in ("logprobs", "old_logprobs"):
            column = np.full(len(e.token_ids), 0 if name == "logprobs" else np.nan, np.float32)
            logp = log_probs(trainer.actor.network.causal_lm, e).detach().numpy()
            column[e.action_mask] = logp + rng.uniform(-spread, spread, len(logp))
            columns[name] = column
        made.append(dataclasses.replace(e, reward=float(i in (0, 2, 3, 5)), group_id=f"g{i % 2}", **columns))
    return made


def prox_of(recipe, trainer, e, logp, mu):
    match recipe.reference:
        case Ewma():
            with torch.no_grad():
                return log_probs(trainer.reference._network.causal_lm, e).numpy()
        case ExactOld():
            return e.old_logprobs[e.action_mask].astype(np.float64)
        case Recomputed():
            return logp
        case LinearProx():
            return np.log(0.5 * np.exp(mu) + 0.5 * np.exp(logp))
        case LogLinearProx():
            return 0.5 * mu + 0.5 * logp
        case _:
            return mu


def plain_episodes(recipe, trainer, episodes):
    made = []
    for i, e in enumerate(episodes):
        logp = log_probs(trainer.actor.network.causal_lm, e).detach().numpy()
        mu = e.logprobs[e.action_mask].astype(np.float64)
        before = np.zeros(len(e.token_ids)) if trainer.critic is None else values(trainer.critic.network, e)
        prox = prox_of(recipe, trainer, e, logp, mu)
        made.append(PlainEpisode(logp, mu, prox, before, e.action_mask, e.reward, group=i % 2))
    return made


def in_the_order_of_the_step(trainer, episodes, columns):
    """Per-episode arrays as the micro-batches lay them end to end."""
    step = trainer._begin(episodes, 0, False, MetricSheet())
    return np.concatenate([columns[i] for batch in step.batches for i in batch.episode_B])


@pytest.mark.parametrize("name", RECIPES)
def test_loss_and_both_gradients_are_those_of_the_papers_written_out(make_trainer, name):
    """Loss, dL/dlogp and dL/dvalue to 1e-6 relative; parameter gradients likewise, by the chain rule in float64.

    Three or more micro-batches, tokens on both sides of every band, an episode in no group of equal rewards.
    """
    recipe, trainer = find_recipe(name), make_trainer(name)
    episodes = rollout(trainer, 0.02 if name in ("gspo", "sat-gspo", "sat-gspo-r3") else 2.0)
    plain = plain_episodes(recipe, trainer, episodes)
    advs = advantages(name, plain)
    loss, gradient = loss_and_gradient(name, plain, advs)
    order = in_the_order_of_the_step(trainer, episodes, gradient)
    expected = parameter_gradients(trainer.actor.network, episodes, gradient)
    errors = value_errors(name, plain)

    report = trainer.step(episodes, version=0, is_warmup=False)

    assert report.skip_reason is None
    assert report.metrics["actor/loss"] == pytest.approx(loss, rel=1e-6)
    assert len(trainer.actor.grads_of_outputs) >= 3, "micro-batches"
    np.testing.assert_allclose(torch.cat(trainer.actor.grads_of_outputs).numpy(), order, rtol=1e-6, atol=1e-12)
    assert 0 < (order == 0).sum() < len(order) or name == "vapo", "tokens with a gradient and tokens without one"
    assert trainer.actor.gradients.keys() == expected.keys()
    largest = max(g.abs().max() for g in expected.values())
    for parameter, g in trainer.actor.gradients.items():
        torch.testing.assert_close(
            g,
            expected[parameter],
            rtol=1e-6,
            atol=float(largest) * 1e-9,
            msg=lambda text, where=parameter: f"{where}: {text}",
        )
    if trainer.critic is not None:
        first = torch.cat(trainer.critic.grads_of_outputs[: len(trainer.actor.grads_of_outputs)]).numpy()
        in_order = in_the_order_of_the_step(trainer, episodes, errors)
        np.testing.assert_allclose(first[first != 0], 2 * in_order / len(in_order), rtol=1e-6)
        assert report.metrics["critic/loss"] == pytest.approx((np.concatenate(errors) ** 2).mean(), rel=1e-6)


def value_errors(name, plain):
    return [e.values[e.mask] - target for e, target in zip(plain, targets(name, plain), strict=True)]


def parameter_gradients(network, episodes, gradient):
    """NumPy's dL/dlogp pushed through the network, one episode at a time."""
    network.zero_grad()
    for e, g in zip(episodes, gradient, strict=True):
        log_probs(network.causal_lm, e).backward(torch.from_numpy(g))
    held = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return held
