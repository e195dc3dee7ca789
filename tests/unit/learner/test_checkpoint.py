import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from online_agent.config.training import LearnerSettings
from online_agent.errors import CorruptVersion
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.fakes.training_episodes import random_episodes

pytestmark = SILENCED
SAO = find_recipe("sao")


def train(trainer, num_steps, first=0):
    """Losses and gradient norms of ``num_steps`` steps, each on its own batch."""
    seen = []
    for n in range(first, first + num_steps):
        is_warmup = n == 0 and trainer.critic is not None
        metrics = trainer.step(random_episodes(6, VOCAB_SIZE, seed=n), version=n, is_warmup=is_warmup).metrics
        seen.append({k: v for k, v in metrics.items() if not k.startswith("seconds/")})
    return seen


def everything(trainer):
    return {
        **{f"actor.{k}": v for k, v in {**trainer.actor.parameters(), **trainer.actor.moments()}.items()},
        **{f"critic.{k}": v for k, v in {**trainer.critic.parameters(), **trainer.critic.moments()}.items()},
        **{f"ewma.{k}": v for k, v in trainer.reference.tensors().items()},
    }


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("zero_stage", [2, 1, 3])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(make_trainer, model_dir, tmp_path, zero_stage):
    whole = make_trainer(zero_stage=zero_stage)
    train(whole, 3)
    whole.export(tmp_path)
    expected = train(whole, 3, first=3)

    other_seed = write_tiny_model(tmp_path / "other", seed=9)
    resumed = PolicyTrainer(other_seed, LearnerSettings(critic_warmup_steps=0, zero_stage=zero_stage), SAO)
    resumed.restore(tmp_path)

    assert train(resumed, 3, first=3) == expected
    assert resumed.num_steps == whole.num_steps == 6
    assert_same(everything(resumed), everything(whole))


def test_a_checkpoint_of_one_zero_stage_restores_under_another(make_trainer, tmp_path):
    one, other = make_trainer(zero_stage=2), make_trainer(zero_stage=3)
    train(one, 2)
    one.export(tmp_path)

    other.restore(tmp_path)

    assert_same(everything(other), everything(one))


def test_after_a_restore_the_next_update_starts_from_the_restored_weights(make_trainer, tmp_path):
    """C31: a restored 5.0 with learning rate 0.1 and gradient 1 gives 4.9; a stale fp32 master would give 0.8.

    AdamW's first update is the learning rate times the sign of the gradient.
    """
    trainer = make_trainer("sao-k1", critic_lr=0.1)
    trainer.export(tmp_path)
    critic_file = tmp_path / "learner" / "critic.safetensors"
    tensors = load_file(critic_file)
    tensors["head.bias"] = torch.tensor([5.0])
    save_file(tensors, critic_file)
    train(trainer, 3)
    assert trainer.critic.parameters()["head.bias"].item() < 1.0

    trainer.restore(tmp_path)
    train(trainer, 1, first=5)

    assert trainer.critic.parameters()["head.bias"].item() == pytest.approx(4.9, abs=1e-4)


def test_the_exported_model_is_the_actor_and_writes_tied_weights_once(make_trainer, model_dir, tmp_path):
    trainer = make_trainer()
    train(trainer, 2)
    trainer.export(tmp_path)

    written = load_file(tmp_path / "serving" / "model.safetensors")
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "serving", dtype=torch.float32)

    assert "lm_head.weight" not in written
    assert written.keys() == load_file(model_dir / "model.safetensors").keys()
    for name, p in served.named_parameters():
        assert torch.equal(p, trainer.actor.parameters()[f"causal_lm.{name}"])


def test_configuration_tokenizer_and_template_come_along_and_weights_of_the_parent_do_not(
    make_trainer, model_dir, tmp_path
):
    trainer = make_trainer()
    trainer.export(tmp_path)
    exported = {path.name for path in (tmp_path / "serving").iterdir()}

    assert exported == {path.name for path in model_dir.iterdir()}
    assert (tmp_path / "serving" / "config.json").read_bytes() == (model_dir / "config.json").read_bytes()


def test_the_directory_a_trainer_came_from_may_be_gone_when_it_writes_the_next_version(make_trainer, tmp_path):
    """Retention deletes the version a learner was started or restored from while the learner lives on."""
    trainer = make_trainer()
    trainer.export(tmp_path / "v1")
    trainer.restore(tmp_path / "v1")
    expected = {path.name for path in (tmp_path / "v1" / "serving").iterdir()}
    shutil.rmtree(tmp_path / "v1")

    trainer.export(tmp_path / "v2")

    assert {path.name for path in (tmp_path / "v2" / "serving").iterdir()} == expected


def test_nothing_written_can_run_code_when_it_is_loaded(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.export(tmp_path)

    assert {path.suffix for path in (tmp_path / "learner").iterdir()} == {".safetensors", ".json"}
    assert json.loads((tmp_path / "learner" / "state.json").read_text())["critic_updates"] == 0


def test_a_version_without_learner_state_begins_learning_anew_from_its_weights(make_trainer, model_dir, tmp_path):
    trainer, fresh = make_trainer(), make_trainer()
    train(trainer, 3)
    shutil.copytree(model_dir, tmp_path / "serving")

    trainer.restore(tmp_path)

    assert (trainer.num_steps, trainer.actor.num_updates, trainer.critic.num_updates) == (0, 0, 0)
    assert_same(everything(trainer), everything(fresh))
    assert train(trainer, 2) == train(fresh, 2)


def test_an_untied_model_keeps_its_own_head(tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    trainer = PolicyTrainer(tmp_path / "model", LearnerSettings(critic_warmup_steps=0), SAO)
    trainer.step(random_episodes(4, 40), version=0, is_warmup=False)
    trainer.export(tmp_path / "v1")

    written = load_file(tmp_path / "v1" / "serving" / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], trainer.actor.parameters()["causal_lm.lm_head.weight"])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda d: (d / "learner" / "ewma.safetensors").unlink(), id="a file is missing"),
        pytest.param(lambda d: (d / "learner" / "critic.safetensors").write_bytes(b"\x10" * 40), id="a file is cut"),
        pytest.param(lambda d: (d / "learner" / "state.json").write_text('{"format": 99}'), id="another format"),
        pytest.param(lambda d: save_file({"x": torch.ones(1)}, d / "learner/actor_optimizer.safetensors"), id="names"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_named(make_trainer, tmp_path, damage):
    trainer = make_trainer()
    trainer.export(tmp_path)
    damage(tmp_path)

    with pytest.raises(CorruptVersion, match="cannot restore the learner from"):
        trainer.restore(tmp_path)


def test_the_rewards_of_a_running_mean_are_restored_bit_for_bit(make_trainer, tmp_path):
    """Also after steps that a rollback takes back."""
    whole = make_trainer("running-mean")
    train(whole, 2)
    whole.export(tmp_path)
    state = whole.running.state()
    assert len(state["rewards"][0][1]) == 12
    expected = train(whole, 2, first=2)

    resumed = make_trainer("running-mean")
    train(resumed, 3, first=7)
    resumed.restore(tmp_path)

    assert resumed.running.state() == state
    assert train(resumed, 2, first=2) == expected


def test_a_critic_that_was_not_there_starts_fresh_and_one_that_is_not_needed_is_left(make_trainer, tmp_path):
    with_critic, without, again = make_trainer("sao"), make_trainer("grpo"), make_trainer("sao", critic_warmup_steps=2)
    train(with_critic, 2)
    with_critic.export(tmp_path / "sao")
    without.restore(tmp_path / "sao")
    train(without, 1, first=2)
    without.export(tmp_path / "grpo")

    again.restore(tmp_path / "grpo")

    assert not {"critic.safetensors", "critic_optimizer.safetensors"} & names_in(tmp_path / "grpo" / "learner")
    assert (again.actor.num_updates, again.critic.num_updates) == (without.actor.num_updates, 0)
    assert_same(again.actor.moments(), without.actor.moments())
    assert not again.critic.parameters()["head.weight"].any()
    prefix = "causal_lm.model."
    for name, tensor in again.critic.parameters().items():
        if name.startswith("backbone."):
            assert torch.equal(tensor, without.actor.parameters()[prefix + name.removeprefix("backbone.")]), name
    assert again.is_warming_up, "a new critic has its warm-up ahead of it"


def test_a_version_of_the_first_format_is_restored(make_trainer, tmp_path):
    trainer = make_trainer()
    train(trainer, 2)
    trainer.export(tmp_path)
    path = tmp_path / "learner" / "state.json"
    state = json.loads(path.read_text())
    for added in ("num_critic_steps", "recipe", "running_rewards"):
        del state[added]
    path.write_text(json.dumps({**state, "format": 1}))

    other = make_trainer(critic_warmup_steps=2)
    other.restore(tmp_path)

    assert (other.num_steps, other.num_critic_steps, other.is_warming_up) == (2, 2, False)
    assert_same(everything(other), everything(trainer))


def names_in(directory):
    return {path.name for path in directory.iterdir()}
