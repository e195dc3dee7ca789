import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from online_agent.config.training import LoraSettings
from online_agent.errors import ConfigError, CorruptVersion
from online_agent.learner import lora
from online_agent.learner.batching import collate
from online_agent.learner.models import Actor, load_causal_lm
from online_agent.weights import WeightStore
from online_agent.weights.adapter import Probe, adapted_weights
from tests.fakes.tiny_model import FFN, HIDDEN, NUM_LAYERS, VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

CPU = torch.device("cpu")
LORA = LoraSettings(rank=4, alpha=6.0)
PROBE = Probe((1, 2), (-1.0,))
UP = "causal_lm.model.layers.0.mlp.up_proj"


@pytest.fixture
def seed(model_dir, tmp_path):
    """The tiny model as version 0 of a store."""
    store = WeightStore(tmp_path / "weights")
    return store.import_seed(model_dir)


def actor_of(model_dir, settings=LORA, *, is_trained=True):
    """A policy with an adapter that has learned something."""
    actor = Actor(load_causal_lm(model_dir))
    lora.attach_adapter(actor, settings, seed=0)
    if is_trained:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in actor.named_parameters():
                if lora.is_factor(name):
                    parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return actor


def log_probs(actor, batch):
    return actor(batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, batch.num_shared)


def write(actor, seed, directory, settings=LORA):
    """A version's served directory beside that of its base."""
    serving = directory / "v000001" / "serving"
    serving.mkdir(parents=True)
    lora.write_adapter(serving, dict(actor.named_parameters()), settings, lora.base_of(seed.serving_dir), PROBE)
    return serving


def test_a_new_adapter_changes_no_log_prob_and_alone_learns(model_dir):
    batch = collate(random_episodes(4, VOCAB_SIZE), (0, 1, 2, 3), CPU)
    plain = Actor(load_causal_lm(model_dir))
    actor = actor_of(model_dir, is_trained=False)
    assert torch.equal(log_probs(plain, batch), log_probs(actor, batch))
    trainable = {name for name, p in actor.named_parameters() if p.requires_grad}
    assert trainable == {name for name, _ in actor.named_parameters() if lora.is_factor(name)}
    assert len(trainable) == 2 * 7 * NUM_LAYERS
    shapes = {name: tuple(p.shape) for name, p in actor.named_parameters()}
    assert shapes[f"{UP}.lora_A.default.weight"] == (4, HIDDEN)
    assert shapes[f"{UP}.lora_B.default.weight"] == (FFN, 4)


@pytest.mark.parametrize("num_shared", [0, 64])
def test_every_factor_and_nothing_else_gets_a_gradient(model_dir, num_shared):
    """Through the last layer that gathers its rows, and with the common prefix worked through once."""
    actor = actor_of(model_dir)
    batch = collate(random_episodes(4, VOCAB_SIZE, num_shared=num_shared), (0, 1, 2, 3), CPU)
    assert batch.num_shared == num_shared
    logp_N = log_probs(actor, batch)
    plain = actor(batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, 0)
    assert torch.allclose(logp_N, plain, atol=1e-5)
    logp_N.sum().backward()
    for name, parameter in actor.named_parameters():
        gradient = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
        assert (gradient > 0) == lora.is_factor(name), name


def test_peft_reads_what_is_written_and_computes_the_same_log_probs(model_dir, seed, tmp_path):
    actor = actor_of(model_dir)
    serving = write(actor, seed, tmp_path)
    peft_model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), serving).eval()
    ids = torch.arange(20, 60)[None]
    with torch.no_grad():
        theirs = torch.log_softmax(peft_model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        ours = actor(ids, torch.arange(39), ids[0, 1:], torch.ones(39))
    assert torch.allclose(ours, theirs, atol=1e-5)
    base = Actor(load_causal_lm(model_dir))(ids, torch.arange(39), ids[0, 1:], torch.ones(39))
    assert (ours - base).abs().max() > 0.01


def test_the_factors_come_back_bit_for_bit(model_dir, seed, tmp_path):
    actor = actor_of(model_dir)
    read = lora.read_factors(write(actor, seed, tmp_path))
    written = {name: p for name, p in actor.named_parameters() if lora.is_factor(name)}
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], written[name]) for name in read)


def test_the_configuration_says_rank_and_scale_and_nothing_of_this_machine(model_dir, seed, tmp_path):
    serving = write(actor_of(model_dir), seed, tmp_path)
    text = (serving / "adapter_config.json").read_text()
    config = json.loads(text)
    assert (config["r"], config["lora_alpha"], config["lora_dropout"], config["peft_type"]) == (4, 6.0, 0.0, "LORA")
    assert config["target_modules"] == sorted(LORA.target_modules)
    assert config["base_model_name_or_path"] is None
    assert str(tmp_path) not in text


def test_merged_weights_are_the_same_policy(model_dir, seed, tmp_path):
    actor = actor_of(model_dir)
    serving = seed.path.parent / "v000001" / "serving"
    write(actor, seed, seed.path.parent)
    whole = Actor(load_causal_lm(model_dir))
    whole.causal_lm.load_state_dict(lora.merged_weights(serving), strict=False)
    batch = collate(random_episodes(4, VOCAB_SIZE), (0, 1, 2, 3), CPU)
    assert torch.allclose(log_probs(whole, batch), log_probs(actor, batch), atol=1e-5)


def test_merging_by_hand(model_dir, seed):
    """W + alpha / rank * B A with alpha 6, rank 4."""
    actor = actor_of(model_dir)
    serving = write(actor, seed, seed.path.parent)
    named = dict(actor.named_parameters())
    a, b = named[f"{UP}.lora_A.default.weight"].double(), named[f"{UP}.lora_B.default.weight"].double()
    expected = load_file(model_dir / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].double() + 1.5 * b @ a
    merged = lora.merged_weights(serving)["model.layers.0.mlp.up_proj.weight"]
    assert torch.allclose(merged.double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(
        lora.merged_weights(serving)["model.norm.weight"],
        load_file(model_dir / "model.safetensors")["model.norm.weight"],
    )


def test_an_adapter_that_does_not_fit_its_base_is_not_merged(model_dir, seed):
    serving = write(actor_of(model_dir), seed, seed.path.parent)
    factors = load_file(serving / "adapter_model.safetensors")
    pair = adapted_weights(factors)["model.layers.0.mlp.up_proj.weight"]
    factors[pair["B"]] = torch.zeros(3, 4)
    save_file(factors, serving / "adapter_model.safetensors")
    with pytest.raises(CorruptVersion, match="cannot merge the adapter in v000001"):
        lora.merged_weights(serving)


def test_a_new_adapter_of_one_seed_is_always_the_same(model_dir):
    one, same = actor_of(model_dir, is_trained=False), actor_of(model_dir, is_trained=False)
    again = lora.initial_factors(one, seed=0)
    for name, parameter in same.named_parameters():
        if lora.is_factor(name):
            assert torch.equal(parameter, again[name])
    assert not torch.equal(
        lora.initial_factors(one, seed=1)[f"{UP}.lora_A.default.weight"], again[f"{UP}.lora_A.default.weight"]
    )


def test_the_probe_holds_the_policys_own_log_probs(model_dir):
    actor = actor_of(model_dir)
    probe = lora.measure_probe(actor, VOCAB_SIZE)
    ids = torch.tensor([probe.token_ids])
    with torch.no_grad():
        logp = torch.log_softmax(actor.causal_lm(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    assert probe.logprobs == pytest.approx(logp.tolist(), abs=1e-5)
    assert lora.measure_probe(actor, VOCAB_SIZE) == probe


def test_a_base_is_the_version_it_was_published_as(seed, model_dir):
    assert lora.base_of(seed.serving_dir) == (lora.Base(0, seed.manifest.content_hash))
    with pytest.raises(ConfigError, match="is no version that an adapter could belong to"):
        lora.base_of(model_dir)


def test_a_layer_that_the_policy_does_not_have_is_named(model_dir):
    actor = Actor(load_causal_lm(model_dir))
    for layer in actor.causal_lm.model.layers:
        layer.mlp.down_proj = torch.nn.Identity()
    with pytest.raises(ConfigError, match="no linear layer down_proj"):
        lora.attach_adapter(actor, LORA, seed=0)
