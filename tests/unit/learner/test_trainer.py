"""One step against the same step written plainly in float64, and what a step must never do."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from online_agent.learner.report import METRIC_KEYS
from online_agent.recipes import find_recipe
from online_agent.recipes.parts import Critic, SkipObservationGae
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.learner import spoil_gradient
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import episode, random_episodes

pytestmark = SILENCED
EPS_LOW, EPS_HIGH, ALPHA = 0.8, 3.0, 1.5


def sao_with(**numbers):
    return dataclasses.replace(find_recipe("sao"), advantage=SkipObservationGae(**numbers))


def rollout(trainer, num=8, *, noise=0.3, seed=0, num_shared=0, version=0):
    """Random episodes with the trainer's own log-probs, moved by up to ``noise`` nats: ratios around 1."""
    rng = np.random.default_rng(seed)
    made = []
    for e in random_episodes(num, VOCAB_SIZE, seed=seed, num_shared=num_shared, version=version):
        logp = plain_log_probs(trainer.actor.network.causal_lm, e).detach().numpy()
        mu = np.zeros(len(e.token_ids), np.float32)
        mu[e.action_mask] = logp + rng.uniform(-noise, noise, len(logp))
        made.append(dataclasses.replace(e, logprobs=mu))
    return made


def plain_log_probs(causal_lm, e):
    logits_TV = causal_lm(input_ids=torch.from_numpy(e.token_ids).long()[None]).logits[0]
    actions = np.flatnonzero(e.action_mask)
    logp_TV = torch.log_softmax(logits_TV[actions - 1] / e.temperature, -1)
    return logp_TV[range(len(actions)), e.token_ids[actions]]


def plain_gae(values, reward, lam):
    """Token by token, from the end (SAO eq. 4-5 with gamma 1)."""
    advantages, after, value_after = np.zeros(len(values)), 0.0, 0.0
    for k in reversed(range(len(values))):
        delta = (reward if k == len(values) - 1 else 0.0) + value_after - values[k]
        advantages[k] = after = delta + lam * after
        value_after = values[k]
    return advantages


def plain_actor_loss(causal_lm, episodes, values):
    """-(1/N) sum sg(f(r)) A logp over all action tokens; float64, one episode at a time."""
    total, count = 0.0, sum(e.num_action_tokens for e in episodes)
    for e, v in zip(episodes, values, strict=True):
        n = e.num_action_tokens
        advantage = plain_gae(v, e.reward, max(0.0, 1 - 1 / (ALPHA * n)))
        logp = plain_log_probs(causal_lm, e)
        ratio = np.exp(logp.detach().numpy() - e.logprobs[e.action_mask].astype(np.float64))
        weight = np.where((ratio > 1 - EPS_LOW) & (ratio < 1 + EPS_HIGH), ratio, 0) * advantage
        total = total - (torch.from_numpy(weight) * logp).sum()
    return total / count


def snapshot(trainer):
    engines = {"actor": trainer.actor, "critic": trainer.critic}
    state = {f"{n}.{k}": v.clone() for n, e in engines.items() for k, v in {**e.parameters(), **e.moments()}.items()}
    counters = [(e.lr, e.num_updates) for e in engines.values()]
    return state, counters, trainer.reference.tensors(), trainer.num_steps


def assert_untouched(trainer, before):
    state, counters, reference, num_steps = snapshot(trainer)
    assert counters == before[1]
    assert num_steps == before[3]
    assert [k for k in state if not torch.equal(state[k], before[0][k])] == []
    assert [k for k in reference if not torch.equal(reference[k], before[2][k])] == []


def gradient_seen_by(engine, monkeypatch):
    """What the engine holds when its first update is asked for, by parameter name; the update still happens."""
    seen, apply = {}, engine.apply
    names = {id(p): name for name, p in engine.network.named_parameters()}

    def record():
        if not seen:
            zero = engine._engine.optimizer
            held = zip(zero.params_in_partition[0], zero.averaged_gradients[0], strict=False)  # padding may follow
            seen.update({names[id(p)]: gradient.clone().view_as(p) for p, gradient in held})
        return apply()

    monkeypatch.setattr(engine, "apply", record)
    return seen


def test_the_actor_gradient_is_that_of_the_loss_written_plainly_in_float64(make_trainer, model_dir, monkeypatch):
    trainer = make_trainer(micro_batch_tokens=80, actor_clip_norm=1e9, critic_bias_init=0.4)
    episodes = rollout(trainer, noise=1.5)
    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    loss = plain_actor_loss(plain, episodes, [np.full(e.num_action_tokens, 0.4) for e in episodes])
    loss.backward()
    seen = gradient_seen_by(trainer.actor, monkeypatch)

    report = trainer.step(episodes, version=0, is_warmup=False)

    assert 0 < report.metrics["tokens/masked_share"] < 0.5
    assert report.metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-4)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(seen[f"causal_lm.{name}"].double(), p.grad, rtol=1e-3, atol=2e-7)


def test_the_critic_learns_the_return_of_each_episode(make_trainer, monkeypatch):
    """Value 0.4 everywhere, returns 0 or 1: the mean squared error and its gradient in the bias, by hand."""
    trainer = make_trainer("sao-k1", critic_bias_init=0.4, critic_clip_norm=1e9)
    episodes = rollout(trainer)
    seen = gradient_seen_by(trainer.critic, monkeypatch)

    report = trainer.step(episodes, version=0, is_warmup=False)

    counts = np.array([e.num_action_tokens for e in episodes])
    rewards = np.array([e.reward for e in episodes])
    errors = 0.4 - rewards
    assert report.metrics["critic/loss"] == pytest.approx((counts * errors**2).sum() / counts.sum(), rel=1e-5)
    assert seen["head.bias"].item() == pytest.approx(2 * (counts * errors).sum() / counts.sum(), rel=1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 90, 100_000])
def test_cutting_the_batch_into_micro_batches_changes_neither_loss_nor_gradient(
    make_trainer, monkeypatch, micro_batch_tokens
):
    """C06, and a common prefix that is shared in one cut and not in the other."""
    whole, cut = make_trainer(micro_batch_tokens=5000), make_trainer(micro_batch_tokens=micro_batch_tokens)
    episodes = rollout(whole, num_shared=10)
    gradients = [gradient_seen_by(t, monkeypatch) for t in (whole.actor, whole.critic, cut.actor, cut.critic)]

    one = whole.step(episodes, version=0, is_warmup=False).metrics
    many = cut.step(episodes, version=0, is_warmup=False).metrics

    for key in ("actor/loss", "critic/loss", "actor/grad_norm", "critic/loss_last", "advantage/mean"):
        assert many[key] == pytest.approx(one[key], rel=2e-4, abs=1e-7), key
    for ours, theirs in ((gradients[2], gradients[0]), (gradients[3], gradients[1])):
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=2e-3, atol=1e-6, msg=name)


def test_the_order_of_episodes_changes_nothing_but_rounding(make_trainer):
    one, other = make_trainer(), make_trainer()
    episodes = rollout(one)

    forwards = one.step(episodes, version=0, is_warmup=False).metrics
    backwards = other.step(episodes[::-1], version=0, is_warmup=False).metrics

    assert backwards["actor/grad_norm"] == pytest.approx(forwards["actor/grad_norm"], rel=1e-4)
    assert backwards["critic/loss_last"] == pytest.approx(forwards["critic/loss_last"], rel=1e-4)


def test_the_critic_is_updated_k_times_and_the_actor_once(make_trainer):
    trainer = make_trainer(sao_with(critic=Critic(updates=3)))
    episodes = rollout(trainer)

    metrics = trainer.step(episodes, version=0, is_warmup=False).metrics

    assert (metrics["actor/updates"], metrics["critic/updates"]) == (1, 3)
    assert metrics["critic/loss_last"] < metrics["critic/loss"]


def test_advantages_come_from_the_values_before_the_critic_updates(make_trainer):
    """A critic that would jump by its learning rate has no say in this step's advantages."""
    slow, quick = make_trainer(critic_lr=1e-6), make_trainer(critic_lr=0.3)
    episodes = rollout(slow)

    one = slow.step(episodes, version=0, is_warmup=False).metrics
    other = quick.step(episodes, version=0, is_warmup=False).metrics

    assert one["advantage/mean"] == other["advantage/mean"]
    assert one["actor/grad_norm"] == other["actor/grad_norm"]
    assert one["critic/loss_last"] != pytest.approx(other["critic/loss_last"], rel=1e-2)


def test_warm_up_trains_the_critic_alone(make_trainer):
    trainer = make_trainer(critic_warmup_steps=1)
    before = {k: v.clone() for k, v in trainer.actor.parameters().items()}
    assert trainer.is_warming_up

    report = trainer.step(rollout(trainer), version=0, is_warmup=trainer.is_warming_up)

    assert report.is_applied
    assert not trainer.is_warming_up
    assert all(torch.equal(before[k], v) for k, v in trainer.actor.parameters().items())
    assert (trainer.actor.num_updates, trainer.critic.num_updates) == (0, 2)
    assert report.metrics["mismatch/mean_abs_logp"] > 0


def test_frozen_parameters_of_the_critic_never_move(make_trainer):
    trainer = make_trainer()
    before = {k: v.clone() for k, v in trainer.critic.parameters().items()}

    trainer.step(rollout(trainer), version=0, is_warmup=False)

    moved = {k for k, v in trainer.critic.parameters().items() if not torch.equal(v, before[k])}
    assert moved == {n for n, p in trainer.critic.network.named_parameters() if p.requires_grad}


def test_whitened_advantages_have_mean_0_and_deviation_1_over_the_whole_step(make_trainer):
    trainer = make_trainer(sao_with(is_whitened=True), micro_batch_tokens=60)

    metrics = trainer.step(rollout(trainer), version=0, is_warmup=False).metrics

    assert metrics["advantage/mean"] == pytest.approx(0, abs=1e-5)
    assert metrics["advantage/std"] == pytest.approx(1, abs=1e-4)


def with_one_nan_reward(episodes):
    return [*episodes[:-1], dataclasses.replace(episodes[-1], reward=float("nan"))]


def far_from_the_policy(episodes):
    return [dataclasses.replace(e, logprobs=np.where(e.action_mask, -30, 0).astype(np.float32)) for e in episodes]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(with_one_nan_reward, "episode e7: reward is nan", id="C32-nan-reward"),
        pytest.param(far_from_the_policy, "trust region masks 1.000 of the tokens", id="C04-all-masked"),
        pytest.param(lambda es: [episode([1, 2], [0, 0])] * 2, "empty batch", id="C04-two-empty-masks"),
        pytest.param(lambda es: far_from_the_policy(es[:2]), "trust region masks 1.000", id="C04-two-all-masked"),
        pytest.param(lambda es: [episode([], [])], "empty batch", id="C04-no-tokens"),
    ],
)
def test_a_skipped_step_moves_nothing_and_the_next_one_trains(make_trainer, spoil, reason):
    trainer = make_trainer(weight_decay=0.1)
    episodes = rollout(trainer)
    trainer.step(episodes, version=0, is_warmup=False)
    before = snapshot(trainer)

    skipped = trainer.step(spoil(episodes), version=0, is_warmup=False)

    assert skipped.skip_reason.startswith(reason)
    assert not skipped.needs_restore
    assert skipped.metrics["actor/loss"] in (None, 0.0), "nothing measured, or the finite zero of an empty mask"
    assert_untouched(trainer, before)
    assert trainer.step(episodes, version=0, is_warmup=False).is_applied


def test_what_a_skipped_step_had_gathered_does_not_leak_into_the_next(make_trainer):
    clean, spoiled = make_trainer(), make_trainer()
    episodes = rollout(clean)
    spoiled.step(far_from_the_policy(episodes), version=0, is_warmup=False)

    one = clean.step(episodes, version=0, is_warmup=False).metrics
    other = spoiled.step(episodes, version=0, is_warmup=False).metrics

    assert other["actor/grad_norm"] == one["actor/grad_norm"]
    assert other["critic/grad_norm"] == one["critic/grad_norm"]


def test_an_actor_gradient_that_is_not_finite_skips_the_step_and_moves_nothing(make_trainer):
    trainer = make_trainer()
    episodes = rollout(trainer)
    trainer.step(episodes, version=0, is_warmup=False)
    before = snapshot(trainer)
    hook = spoil_gradient(trainer.actor.network)

    report = trainer.step(episodes, version=0, is_warmup=False)
    hook.remove()

    assert report.skip_reason == "actor gradient is not finite"
    assert not report.needs_restore
    assert_untouched(trainer, before)


def test_a_critic_gradient_that_is_not_finite_asks_to_be_restored(make_trainer):
    """The actor was updated by then; the caller goes back to the last version."""
    trainer = make_trainer()
    hook = spoil_gradient(trainer.critic.network)

    report = trainer.step(rollout(trainer), version=0, is_warmup=False)
    hook.remove()

    assert report.skip_reason == "critic gradient is not finite in update 1"
    assert report.needs_restore


@pytest.mark.parametrize("kind", ["applied", "warm-up", "skipped"])
def test_every_metric_is_present_at_every_step(make_trainer, kind):
    trainer = make_trainer()
    episodes = rollout(trainer)

    report = trainer.step(
        with_one_nan_reward(episodes) if kind == "skipped" else episodes, version=0, is_warmup=kind == "warm-up"
    )

    assert tuple(report.metrics) == METRIC_KEYS
    assert report.is_applied is (kind != "skipped")
    missing = {key for key, value in report.metrics.items() if value is None}
    if kind == "applied":
        assert {key.split("/")[0] for key in missing} == {"sat", "old_logits"}, "what SAO has none of"


def test_staleness_and_mismatch_tell_this_version_from_older_ones(make_trainer):
    trainer = make_trainer(max_staleness_versions=4)
    fresh, stale = rollout(trainer, num=3, version=7), rollout(trainer, num=2, version=5, seed=1)

    metrics = trainer.step([*fresh, *stale], version=7, is_warmup=False).metrics

    assert metrics["staleness/histogram"] == [3, 0, 2, 0, 0]
    assert metrics["staleness/mean_versions"] == pytest.approx(0.8)
    assert metrics["staleness/max_versions"] == 2
    assert metrics["ewma/beta"] == pytest.approx(0.8 / 2.8)
    assert metrics["ewma/mean_age"] == pytest.approx(0.4), "the middle of the window"
    assert metrics["mismatch/current_version_tokens"] == sum(e.num_action_tokens for e in fresh)
    assert metrics["mismatch/current_version_max_abs_logp"] <= 0.3 + 1e-4


def test_reward_rises_when_one_token_is_rewarded(make_trainer):
    """Twenty steps on episodes that are rewarded for sampling token 7: its probability goes up."""
    trainer = make_trainer(actor_lr=3e-3, actor_clip_norm=1.0)
    rng = np.random.default_rng(0)
    first = last = None
    for _ in range(20):
        made = []
        for _ in range(16):
            token = 7 if rng.random() < 0.5 else 8
            bare = episode([1, 2, 3, token], [0, 0, 0, 1], reward=float(token == 7))
            logp = float(plain_log_probs(trainer.actor.network.causal_lm, bare).detach())
            made.append(dataclasses.replace(bare, logprobs=np.array([0, 0, 0, logp], np.float32)))
            if token == 7:
                first, last = logp if first is None else first, logp
        trainer.step(made, version=0, is_warmup=False)

    assert last > first + 1.0
