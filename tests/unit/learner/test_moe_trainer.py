"""A mixture of experts through the whole trainer: what a step moves, what it refuses, and the directory it leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from online_agent.config.training import LearnerSettings
from online_agent.learner.models import Critic
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.tiny_model import NUM_LAYERS, VOCAB_SIZE
from tests.fakes.tiny_moe import write_tiny_moe
from tests.fakes.training_episodes import random_episodes

pytestmark = SILENCED
R3 = replace(find_recipe("sat-gspo-r3"), name="wide-r3", trust_region=find_recipe("grpo-dis").trust_region)


@pytest.fixture(scope="module")
def moe_dir(tmp_path_factory):
    return write_tiny_moe(tmp_path_factory.mktemp("moe") / "model", scale=0.05)


def trainer_of(model_dir, recipe, **settings):
    return PolicyTrainer(model_dir, LearnerSettings(**{"critic_warmup_steps": 0, "actor_lr": 1e-3, **settings}), recipe)


def group(num=6, experts=(3, 1)):
    """Episodes of one group, each token routed to the same two experts."""
    made = random_episodes(num, VOCAB_SIZE)
    return [
        replace(
            e,
            group_id="g",
            reward=float(i % 2),
            routed_experts=np.tile(np.uint8(experts), (len(e.token_ids), NUM_LAYERS, 1)),
        )
        for i, e in enumerate(made)
    ]


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_a_replayed_step_moves_the_recorded_experts_alone(moe_dir):
    trainer = trainer_of(moe_dir, R3)
    before = {n: t.clone() for n, t in trainer.actor.parameters().items()}

    report = trainer.step(group(), version=0, is_warmup=False)

    assert report.skip_reason is None
    after = trainer.actor.parameters()
    for layer in range(NUM_LAYERS):
        for name in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):
            key = f"causal_lm.model.layers.{layer}.mlp.{name}"
            moved_E = (before[key] != after[key]).flatten(1).any(1).tolist()
            assert moved_E == [False, True, False, True]


def test_an_episode_without_experts_stops_a_step_that_replays_and_moves_nothing(moe_dir):
    trainer = trainer_of(moe_dir, R3)
    before = {n: t.clone() for n, t in trainer.actor.parameters().items()}
    torn = group()
    torn[2] = replace(torn[2], routed_experts=None)

    report = trainer.step(torn, version=0, is_warmup=False)

    assert report.skip_reason == "episode e2: the engine's choice of experts is not recorded for every token"
    assert not changed(before, trainer.actor.parameters())
    assert trainer.step(group(), version=0, is_warmup=False).skip_reason is None


def test_other_recipes_train_an_episode_without_experts_and_do_not_look_at_those_of_others(moe_dir):
    torn = group()
    torn[2] = replace(torn[2], routed_experts=None)
    moved = []
    for episodes in (torn, [replace(e, routed_experts=None) for e in torn]):
        trainer = trainer_of(moe_dir, find_recipe("grpo-dis"))
        assert trainer.step(episodes, version=0, is_warmup=False).skip_reason is None
        moved.append({n: t.clone() for n, t in trainer.actor.parameters().items()})

    assert not changed(*moved)


def test_a_dense_policy_trains_with_a_recipe_that_replays_since_there_is_nothing_to_replay(model_dir):
    episodes = [replace(e, routed_experts=None) for e in group()]
    replaying, plain = trainer_of(model_dir, R3), trainer_of(model_dir, replace(R3, replays_routing=False))
    for trainer in (replaying, plain):
        assert trainer.step(episodes, version=0, is_warmup=False).skip_reason is None

    assert not changed(replaying.actor.parameters(), plain.actor.parameters())


def test_the_critic_of_a_mixture_learns_with_experts_and_routers_and_without_attention(moe_dir):
    trainer = trainer_of(moe_dir, find_recipe("sao"))
    critic = trainer.critic.network
    assert isinstance(critic, Critic)
    assert critic.num_frozen == 4 * NUM_LAYERS
    before = {n: t.clone() for n, t in trainer.critic.parameters().items()}
    for _ in range(2):
        assert trainer.step(group(), version=0, is_warmup=False).skip_reason is None

    moved = changed(before, trainer.critic.parameters())
    assert not any(".self_attn." in n and not n.endswith("_norm.weight") for n in moved)
    for part in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):
        assert f"backbone.layers.0.mlp.{part}" in moved


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_step_is_published_as_a_checkpoint_names_it_and_is_restored_bit_for_bit(moe_dir, tmp_path, zero_stage):
    trainer = trainer_of(moe_dir, R3, zero_stage=zero_stage)
    assert trainer.step(group(), version=0, is_warmup=False).skip_reason is None
    trainer.export(tmp_path / "v")

    seed, written = (load_file(d / "model.safetensors") for d in (moe_dir, tmp_path / "v" / "serving"))
    assert {n: (t.shape, t.dtype) for n, t in written.items()} == {n: (t.shape, t.dtype) for n, t in seed.items()}
    moved = {n for n in seed if not np.array_equal(seed[n], written[n])}
    of_experts = {n for n in moved if ".experts." in n}
    assert {n.split(".experts.")[1].split(".")[0] for n in of_experts} == {"1", "3"}
    assert len(of_experts) == 2 * 3 * NUM_LAYERS

    again = trainer_of(moe_dir, R3, zero_stage=zero_stage)
    again.restore(tmp_path / "v")
    assert not changed(trainer.actor.parameters(), again.actor.parameters())
    for one in (trainer, again):
        assert one.step(group(experts=(0, 2)), version=1, is_warmup=False).skip_reason is None
    assert not changed(trainer.actor.parameters(), again.actor.parameters())


@pytest.mark.parametrize("recipe", [R3, find_recipe("sao")], ids=["replayed", "chosen by routers"])
def test_packed_rows_of_a_mixture_train_as_padded_rows_do(moe_dir, recipe):
    """Each token has experts of its own, so a row that took its neighbour's would show."""
    rng = np.random.default_rng(0)
    episodes = [
        replace(e, routed_experts=rng.permuted(np.tile(np.arange(4, dtype=np.uint8), (*shape, 1)), axis=-1)[..., :2])
        for e in group()
        for shape in [(len(e.token_ids), NUM_LAYERS)]
    ]
    padded, packed = (
        trainer_of(moe_dir, recipe, micro_batch_tokens=90, batching=each) for each in ("buckets", "packed")
    )

    expected, got = (t.step(episodes, version=0, is_warmup=False) for t in (padded, packed))

    assert got.metrics["batch/non_pad_share"] == 1.0 > expected.metrics["batch/non_pad_share"]
    for key in ("actor/loss", "actor/grad_norm"):
        assert got.metrics[key] == pytest.approx(expected.metrics[key], rel=1e-5), key
    moments, wanted = packed.actor.moments(), padded.actor.moments()
    for name in [name for name in wanted if name.startswith("exp_avg.")]:
        torch.testing.assert_close(moments[name], wanted[name], rtol=1e-3, atol=1e-6, msg=name)
