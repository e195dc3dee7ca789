"""Every recipe through the DeepSpeed trainer: it trains, and what it must not train on leaves everything as it was."""

import dataclasses

import numpy as np
import pytest
import torch

from online_agent.learner.report import METRIC_KEYS
from online_agent.recipes import RECIPES, find_recipe
from online_agent.recipes.parts import (
    Cispo,
    Critic,
    Dis,
    Ewma,
    ExactOld,
    GroupNormalised,
    IcePop,
    MaskedIs,
    PlainGae,
    PpoClip,
    RunningMean,
    Sat,
    SkipObservationGae,
    StepLevelGae,
    Tis,
)
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import episode, random_episodes

pytestmark = SILENCED

NEVER_MASKS = {"vapo"}
"""pi over the weights at hand is 1 before the update: no token can be outside."""


def rollout(trainer, *, noise=0.01, seed=0, num=8):
    """Episodes near the policy, as one group per four, with old log-probs equal to the policy's."""
    rng = np.random.default_rng(seed)
    made = []
    for i, e in enumerate(random_episodes(num, VOCAB_SIZE, seed=seed)):
        logp = policy_log_probs(trainer, e)
        mu, old = np.zeros(len(e.token_ids), np.float32), np.full(len(e.token_ids), np.nan, np.float32)
        mu[e.action_mask] = logp + rng.uniform(-noise, noise, len(logp))
        old[e.action_mask] = logp
        made.append(
            dataclasses.replace(
                e, logprobs=mu, old_logprobs=old, reward=float(i % 2), group_id=f"g{i // 4}", task_id=f"t{i % 3}"
            )
        )
    return made


@torch.no_grad()
def policy_log_probs(trainer, e):
    logits_TV = trainer.actor.network.causal_lm(input_ids=torch.from_numpy(e.token_ids).long()[None]).logits[0]
    actions = np.flatnonzero(e.action_mask)
    logp_TV = torch.log_softmax(logits_TV[actions - 1] / e.temperature, -1)
    return logp_TV[range(len(actions)), e.token_ids[actions]].numpy()


def far_from_the_policy(trainer, episodes):
    """Every token five nats from the engine's, on the side its reward pushes to: masked, or clipped."""
    moved = []
    for e in episodes:
        mu = np.zeros(len(e.token_ids), np.float32)
        mu[e.action_mask] = policy_log_probs(trainer, e) + (-5 if e.reward else 5)
        moved.append(dataclasses.replace(e, logprobs=mu))
    return moved


def snapshot(trainer):
    engines = [engine for engine in (trainer.actor, trainer.critic) if engine is not None]
    tensors = {f"{i}.{n}": t for i, e in enumerate(engines) for n, t in {**e.parameters(), **e.moments()}.items()}
    average = {f"average.{n}": t for n, t in trainer.reference.tensors().items()}
    state = {name: tensor.clone() for name, tensor in {**tensors, **average}.items()}
    counters = [(e.lr, e.num_updates) for e in engines]
    return state, (counters, trainer.num_steps, trainer.num_critic_steps, trainer.running.state())


def assert_untouched(trainer, before, why, *, but=""):
    state, counters = snapshot(trainer)
    assert counters == before[1], why
    moved = [name for name in state if not torch.equal(state[name], before[0][name])]
    assert [name for name in moved if not but or not name.startswith(but)] == [], why


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_that_cannot_be_trained_on_moves_nothing_and_the_next_one_trains(make_trainer, name):
    """C04, C32: parameters, moments, learning rates, average, rewards and counters, bit for bit."""
    trainer = make_trainer(name, weight_decay=0.1, critic_lr=1e-5, micro_batch_tokens=90)
    episodes = rollout(trainer)
    first = trainer.step(episodes, version=0, is_warmup=False)
    assert first.skip_reason is None
    assert tuple(first.metrics) == METRIC_KEYS
    before = snapshot(trainer)

    spoiled = {
        "masked": far_from_the_policy(trainer, episodes),
        "empty": [episode([1, 2], [0, 0])] * 2,
        "not finite": [*episodes[:-1], dataclasses.replace(episodes[-1], reward=float("nan"))],
    }
    if name in NEVER_MASKS:
        del spoiled["masked"]
    for why, batch in spoiled.items():
        report = trainer.step(batch, version=0, is_warmup=False)
        assert report.skip_reason is not None, why
        assert not report.needs_restore
        assert tuple(report.metrics) == METRIC_KEYS
        is_held_back = why == "masked" and isinstance(trainer.recipe.reference, Ewma)
        assert [reset.cause for reset in report.resets] == ["trust_region_fault"] * is_held_back
        assert_untouched(trainer, before, why, but="average." if is_held_back else "")

    assert trainer.step(episodes, version=0, is_warmup=False).is_applied
    assert trainer.actor.num_updates == 2


@pytest.mark.parametrize("name", ["sao-ewma", "ppo-ewma"])
def test_a_recipe_held_back_by_its_own_average_gets_on_after_one_skipped_step(make_trainer, name):
    """An average far from the policy masks its tokens; a skipped step publishes nothing that could move it."""
    trainer = make_trainer(name)
    episodes = rollout(trainer)
    noise = torch.Generator().manual_seed(0)
    far = {k: torch.randn(t.shape, generator=noise) for k, t in trainer.actor.parameters().items()}
    trainer.reference.reset(far, "test")

    skipped, taken = (trainer.step(episodes, version=0, is_warmup=False) for _ in range(2))

    assert skipped.skip_reason.startswith("trust region")
    assert [reset.cause for reset in skipped.resets] == ["trust_region_fault"]
    assert taken.is_applied


OTHERS = {
    "cispo": {"trust_region": Cispo()},
    "tis": {"trust_region": Tis(), "reference": ExactOld()},
    "icepop": {"trust_region": IcePop(), "reference": ExactOld()},
    "masked-is": {"trust_region": MaskedIs(), "reference": ExactOld()},
    "dr-grpo": {"advantage": GroupNormalised(is_divided_by_std=False), "aggregation": "kept_token_mean"},
    "per-task-mean": {"advantage": RunningMean(over="task")},
    "step-last": {"advantage": StepLevelGae(value="last", is_whitened=True)},
    "bootstrapped": {"advantage": PlainGae(is_bootstrapped=True, critic=Critic(value_clip=0.2))},
    "sat-by-micro-batch": {"trust_region": Sat(over="microbatch"), "reference": Ewma()},
    "values-after": {"advantage": SkipObservationGae(critic=Critic(values_from="after"))},
}


@pytest.mark.parametrize("parts", OTHERS.values(), ids=OTHERS)
def test_compositions_without_a_name_train_too(make_trainer, parts):
    trainer = make_trainer(dataclasses.replace(find_recipe("sao"), name="own", **parts), micro_batch_tokens=90)
    episodes = [dataclasses.replace(e, is_truncated=i < 3) for i, e in enumerate(rollout(trainer))]
    before = {k: v.clone() for k, v in trainer.actor.parameters().items()}

    report = trainer.step(episodes, version=0, is_warmup=False)

    assert report.skip_reason is None
    assert any(not torch.equal(before[k], v) for k, v in trainer.actor.parameters().items())


def test_values_taken_after_the_updates_are_other_values_and_a_skipped_step_takes_the_updates_back(make_trainer):
    after = dataclasses.replace(
        find_recipe("sao"), advantage=SkipObservationGae(critic=Critic(values_from="after"), is_bootstrapped=True)
    )
    trainer, plain = make_trainer(after, critic_lr=0.05), make_trainer(critic_lr=0.05)
    episodes = rollout(trainer)
    ours, theirs = (t.step(episodes, version=0, is_warmup=False).metrics for t in (trainer, plain))
    assert ours["critic/loss"] == theirs["critic/loss"]
    assert ours["advantage/mean"] != pytest.approx(theirs["advantage/mean"], rel=1e-3)

    before = snapshot(trainer)
    report = trainer.step(far_from_the_policy(trainer, episodes), version=0, is_warmup=False)
    assert report.skip_reason.startswith("trust region masks")
    assert_untouched(trainer, before, "masked")


@pytest.mark.parametrize("name", ["sat-grpo", "sat-gspo", "kept"])
@pytest.mark.parametrize("micro_batch_tokens", [1, 70])
def test_statistics_of_the_step_do_not_show_the_cut_into_micro_batches(make_trainer, name, micro_batch_tokens):
    recipe = dataclasses.replace(find_recipe("sao"), aggregation="kept_token_mean") if name == "kept" else name
    whole, cut = make_trainer(recipe), make_trainer(recipe, micro_batch_tokens=micro_batch_tokens)
    episodes = rollout(whole, noise=2.0)

    one, many = (t.step(episodes, version=0, is_warmup=False).metrics for t in (whole, cut))

    assert many["actor/loss"] == pytest.approx(one["actor/loss"], rel=2e-4, abs=1e-6)
    assert many["actor/grad_norm"] == pytest.approx(one["actor/grad_norm"], rel=2e-4)
    assert many["tokens/kept"] == one["tokens/kept"]
    assert many["sat/gate_rate"] == one["sat/gate_rate"]
    assert (one["sat/gate_rate"] is None) is (name == "kept")


def test_sat_tells_how_far_its_band_was_narrowed(make_trainer):
    trainer = make_trainer("sat-grpo", micro_batch_tokens=90)
    episodes = rollout(trainer, noise=0.5)
    d = np.concatenate([policy_log_probs(trainer, e) - e.logprobs[e.action_mask] for e in episodes])
    q = np.sort(np.abs(d))[int(np.ceil(0.9 * len(d))) - 1]
    narrowing = np.where(np.abs(d) > q, 1 / (1 + (d / q) ** 2), 1)
    assert (narrowing[d < 0] < 1).any()
    assert (narrowing[d > 0] < 1).any()

    metrics = trainer.step(episodes, version=0, is_warmup=False).metrics

    assert metrics["sat/threshold"] == pytest.approx(q, rel=1e-4)
    assert metrics["sat/gate_rate"] == pytest.approx((narrowing < 1).mean())
    assert metrics["sat/mean_eps_low"] == pytest.approx(0.2 * np.where(d < 0, narrowing, 1).mean(), rel=1e-4)
    assert metrics["sat/mean_eps_high"] == pytest.approx(0.2 * np.where(d > 0, narrowing, 1).mean(), rel=1e-4)
    assert metrics["sat/min_c"] == pytest.approx(narrowing.min(), rel=1e-4)


def test_a_healthy_step_whose_tokens_are_mostly_clipped_is_taken(make_trainer):
    """Three quarters clipped is a trust region at work; a mask that wide would be a batch that does not fit."""
    recipe = dataclasses.replace(find_recipe("sao"), trust_region=PpoClip(eps_low=0.01, eps_high=0.01))
    trainer = make_trainer(recipe, max_masked_share=0.1)
    episodes = rollout(trainer)
    near, far = episodes[:2], far_from_the_policy(trainer, episodes[2:])

    report = trainer.step([*near, *far], version=0, is_warmup=False)

    assert report.skip_reason is None
    assert report.metrics["tokens/masked_share"] == 0
    assert report.metrics["tokens/clipped_low_share"] + report.metrics["tokens/clipped_high_share"] > 0.5


def test_tokens_without_an_old_log_prob_do_not_train_and_are_counted(make_trainer):
    whole, partly = make_trainer("decoupled-exact"), make_trainer("decoupled-exact")
    episodes = rollout(whole)
    missing = [dataclasses.replace(e, old_logprobs=None) if i == 0 else e for i, e in enumerate(episodes)]

    one = whole.step(episodes, version=0, is_warmup=False).metrics
    other = partly.step(missing, version=0, is_warmup=False).metrics

    assert one["old_logits/missing_tokens"] == 0
    assert other["old_logits/missing_tokens"] == episodes[0].num_action_tokens
    assert other["tokens/kept"] <= one["tokens/kept"] - episodes[0].num_action_tokens * 0.5
    assert other["tokens/total"] == one["tokens/total"]


def test_the_async_reference_is_the_policy_itself_before_its_one_update(make_trainer):
    metrics = None
    for name in ("vapo", "decoupled-async"):
        trainer = make_trainer(name)
        metrics = trainer.step(rollout(trainer, noise=0.5), version=0, is_warmup=False).metrics
        assert metrics["reference/mean_abs_log_ratio"] == 0
        assert metrics["tokens/clipped_low_share"] == metrics["tokens/clipped_high_share"] == 0


def test_rho_of_a_recipe_that_trains_against_the_average_counts_the_whole_batch(make_trainer):
    watching, training = make_trainer("sao"), make_trainer("ppo-ewma")
    episodes = rollout(watching)

    watched = watching.step(episodes, version=0, is_warmup=False).metrics
    trained = training.step(episodes, version=0, is_warmup=False).metrics

    assert trained["ewma/probed_tokens"] == trained["tokens/total"]
    assert trained["ewma/active_share"] == trained["tokens/active_share"]
    assert watched["ewma/probed_tokens"] < watched["tokens/total"]


def test_a_recipe_against_the_average_forgets_it_when_too_few_tokens_are_active(make_trainer):
    trainer = make_trainer("ppo-ewma", max_masked_share=0.9)
    episodes = rollout(trainer)
    assert trainer.step(episodes, version=0, is_warmup=False).resets == ()

    report = trainer.step([*episodes[:4], *far_from_the_policy(trainer, episodes[4:])], version=0, is_warmup=False)

    assert [reset.cause for reset in report.resets] == ["active_share_below_tau"]
    assert report.metrics["ewma/resets"] == 1
    assert report.metrics["ewma/weighted_age"] == 0


def test_a_recipe_without_a_critic_builds_none_and_has_no_warm_up(make_trainer):
    trainer = make_trainer("grpo", critic_warmup_steps=5)
    assert trainer.critic is None
    assert not trainer.is_warming_up
    metrics = trainer.step(rollout(trainer), version=0, is_warmup=False).metrics
    assert {key for key in metrics if key.startswith("critic/") and metrics[key] is not None} == set()


def test_only_attention_and_embeddings_separate_the_unfrozen_critic_from_the_frozen_one(make_trainer):
    frozen, unfrozen = (
        {n for n, p in make_trainer(name).critic.network.named_parameters() if p.requires_grad}
        for name in ("sao", "sao-unfrozen")
    )
    assert frozen < unfrozen
    assert all(".self_attn." in name for name in unfrozen - frozen)


def test_the_clip_ratio_says_how_much_of_a_gradient_was_left(make_trainer):
    trainer = make_trainer(actor_clip_norm=1e-3, critic_clip_norm=1e9)
    metrics = trainer.step(rollout(trainer), version=0, is_warmup=False).metrics
    assert metrics["actor/clip_ratio"] == pytest.approx(1e-3 / metrics["actor/grad_norm"], rel=1e-3)
    assert metrics["critic/clip_ratio"] == 1.0


def test_dis_around_the_average_drops_what_the_average_has_left_behind(make_trainer):
    """The average equals the policy: band never left, but tokens the engine saw 5 nats away are masked."""
    trainer = make_trainer(dataclasses.replace(find_recipe("sao-ewma"), trust_region=Dis(eps_high=200.0)))
    episodes = rollout(trainer)
    far = far_from_the_policy(trainer, episodes[:2])

    metrics = trainer.step([*far, *episodes[2:]], version=0, is_warmup=False).metrics

    dropped = sum(e.num_action_tokens for e in far)
    assert metrics["tokens/total"] - metrics["tokens/kept"] == dropped
