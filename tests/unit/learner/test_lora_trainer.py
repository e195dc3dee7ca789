"""A trainer whose actor is an adapter: what moves, what is published, and the way back."""

import pytest
import torch
from safetensors.torch import load_file

from online_agent.config.training import LearnerSettings, LoraSettings
from online_agent.errors import ConfigError, ForeignVersion
from online_agent.learner import lora
from online_agent.learner.models import load_causal_lm
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.weights import WeightStore, check_fits
from online_agent.weights.adapter import Base, read_probe
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.fakes.training_episodes import random_episodes

pytestmark = SILENCED
LORA = LoraSettings(rank=4, alpha=8.0)


@pytest.fixture
def store(model_dir, tmp_path):
    weights = WeightStore(tmp_path / "weights")
    weights.import_seed(model_dir)
    return weights


def trainer_of(serving_dir, recipe="sao", **settings):
    values = {"critic_warmup_steps": 0, "actor": "lora", "lora": LORA, "actor_lr": 1e-2, **settings}
    return PolicyTrainer(serving_dir, LearnerSettings(**values), find_recipe(recipe))


def train(trainer, num_steps, first=0):
    reports = [
        trainer.step(random_episodes(6, VOCAB_SIZE, seed=n), version=n, is_warmup=False)
        for n in range(first, first + num_steps)
    ]
    assert [report.skip_reason for report in reports] == [None] * num_steps
    return [{k: v for k, v in r.metrics.items() if not k.startswith("seconds/")} for r in reports]


def publish(trainer, store, version):
    with store.writer(version, parent=0, step=version) as directory:
        trainer.export(directory)
    return store.open(version)


def copied(parameters):
    return {name: tensor.clone() for name, tensor in parameters.items()}


def split(parameters):
    """(factors, everything else)"""
    factors = {name: t for name, t in parameters.items() if lora.is_factor(name)}
    return factors, {name: t for name, t in parameters.items() if name not in factors}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_steps_move_the_factors_and_leave_the_base_as_it_was_bit_for_bit(store):
    base = store.open(0)
    trainer = trainer_of(base.serving_dir)
    factors, rest = map(copied, split(trainer.actor.parameters()))
    train(trainer, 3)
    moved, untouched = split(trainer.actor.parameters())
    assert_same(untouched, rest)
    assert [name for name in factors if torch.equal(moved[name], factors[name])] == []
    on_disk = load_file(base.serving_dir / "model.safetensors")
    plain = lora.plain_names(trainer.actor.parameters())
    assert_same({name.removeprefix("causal_lm."): t for name, t in plain.items()}, on_disk)


def test_a_published_version_is_an_adapter_of_the_base_and_nothing_of_the_base_is_published_again(store):
    trainer = trainer_of(store.open(0).serving_dir)
    train(trainer, 2)
    version = publish(trainer, store, 1)
    check_fits(version, store.open(0).manifest)
    assert version.manifest.base == Base(0, store.open(0).manifest.content_hash)
    assert [path.name for path in version.serving_dir.glob("*.safetensors")] == ["adapter_model.safetensors"]
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {p.name for p in version.serving_dir.iterdir()}
    for name in ("actor_optimizer", "ewma"):
        tensors = load_file(version.learner_dir / f"{name}.safetensors")
        assert all(lora.is_factor(key) or key in ("weight", "age_versions") for key in tensors), name
    assert set(load_file(version.learner_dir / "critic.safetensors")) == set(trainer.critic.parameters())


def test_its_probe_holds_the_log_probs_of_the_published_policy(store):
    trainer = trainer_of(store.open(0).serving_dir)
    new = read_probe(publish(trainer, store, 1).serving_dir)
    train(trainer, 2)
    version = publish(trainer, store, 2)
    probe = read_probe(version.serving_dir)
    whole = load_causal_lm(version.serving_dir)
    whole.load_state_dict(lora.merged_weights(version.serving_dir), strict=False)
    ids = torch.tensor([probe.token_ids])
    with torch.no_grad():
        logp = torch.log_softmax(whole(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    assert probe.logprobs == pytest.approx(logp.tolist(), abs=1e-5)
    assert max(abs(a - b) for a, b in zip(probe.logprobs, new.logprobs, strict=True)) > 1e-3


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(store, zero_stage):
    whole = trainer_of(store.open(0).serving_dir, zero_stage=zero_stage)
    train(whole, 2)
    version = publish(whole, store, 1)
    expected = train(whole, 2, first=2)

    resumed = trainer_of(version.serving_dir, zero_stage=zero_stage)
    resumed.restore(version.path)

    assert train(resumed, 2, first=2) == expected
    assert_same(resumed.actor.parameters(), whole.actor.parameters())
    assert_same(resumed.actor.moments(), whole.actor.moments())
    assert_same(resumed.reference.tensors(), whole.reference.tensors())
    assert_same(resumed.critic.parameters(), whole.critic.parameters())


def test_every_zero_stage_publishes_the_same_content(store):
    """Of one state. Steps of their own differ in the last bit of the gradient's norm at stage 3."""
    first = trainer_of(store.open(0).serving_dir, zero_stage=2)
    train(first, 2)
    version = publish(first, store, 1)
    for stage, number in ((1, 2), (3, 3)):
        trainer = trainer_of(store.open(0).serving_dir, zero_stage=stage)
        trainer.restore(version.path)
        assert publish(trainer, store, number).manifest.content_hash == version.manifest.content_hash


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_every_zero_stage_computes_the_same_gradient(store, zero_stage):
    ours, theirs = (trainer_of(store.open(0).serving_dir, zero_stage=stage) for stage in (zero_stage, 2))
    ours_norm, norm = (train(trainer, 1)[0]["actor/grad_norm"] for trainer in (ours, theirs))
    assert ours_norm == pytest.approx(norm, rel=1e-6)
    expected = theirs.actor.moments()
    assert all(torch.allclose(t, expected[name], rtol=1e-5, atol=1e-8) for name, t in ours.actor.moments().items())


def test_after_a_rollback_to_the_base_a_new_adapter_begins(store):
    trainer = trainer_of(store.open(0).serving_dir)
    first = publish(trainer, store, 1)
    train(trainer, 2)
    trainer.restore(store.copy_as(0, 2).path)
    assert publish(trainer, store, 3).manifest.content_hash == first.manifest.content_hash
    assert (trainer.num_steps, trainer.actor.num_updates) == (0, 0)
    _, rest = split(trainer.actor.parameters())
    plain = lora.plain_names(trainer.actor.parameters())
    fresh = trainer.networks.fresh_critic(rest)
    assert all(
        torch.equal(t, plain[name.replace("backbone.", "causal_lm.model.")])
        for name, t in fresh.items()
        if "head" not in name
    )


def test_a_version_of_another_base_is_not_restored(store, tmp_path):
    other = store.import_seed(write_tiny_model(tmp_path / "other", seed=9), 5)
    stranger = trainer_of(other.serving_dir)
    foreign = publish(stranger, store, 6)
    trainer = trainer_of(store.open(0).serving_dir)
    before = copied(trainer.actor.parameters())
    for version in (other, foreign):
        with pytest.raises(
            ForeignVersion, match=f"version {version.manifest.version} belongs to the weights of version 5"
        ):
            trainer.restore(version.path)
    assert_same(trainer.actor.parameters(), before)


def test_a_learner_of_whole_weights_does_not_start_from_an_adapter(store):
    trainer = trainer_of(store.open(0).serving_dir)
    version = publish(trainer, store, 1)
    with pytest.raises(ConfigError, match=r"v000001 is an adapter: set learner\.actor"):
        trainer_of(version.serving_dir, actor="full")


def test_a_batch_that_is_refused_moves_no_factor(store):
    trainer = trainer_of(store.open(0).serving_dir, max_masked_share=1e-9)
    before, moments = copied(trainer.actor.parameters()), copied(trainer.actor.moments())
    report = trainer.step(random_episodes(6, VOCAB_SIZE, logprob=-30.0), version=0, is_warmup=False)
    assert report.skip_reason is not None
    assert_same(trainer.actor.parameters(), before)
    assert_same(trainer.actor.moments(), moments)
