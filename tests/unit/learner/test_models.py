import copy
import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
)

from online_agent.config.training import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner.batching import collate
from online_agent.learner.last_layer import is_known_decoder
from online_agent.learner.models import Actor, Critic, load_causal_lm
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import episode, random_episodes

CPU = torch.device("cpu")
FREEZE = LearnerSettings().critic_freeze_pattern


def log_probs(actor, batch, num_shared=None):
    shared = batch.num_shared if num_shared is None else num_shared
    return actor(batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, shared)


def plain_log_probs(causal_lm, made):
    """One episode alone, all logits, float64: the slow way."""
    with torch.no_grad():
        logits_TV = causal_lm(input_ids=torch.from_numpy(made.token_ids).long()[None]).logits[0].double()
    logp_TV = torch.log_softmax(logits_TV / made.temperature, -1)
    return [float(logp_TV[t - 1, made.token_ids[t]]) for t in range(len(made.token_ids)) if made.action_mask[t]]


@pytest.fixture(scope="module")
def actor(model_dir):
    return Actor(load_causal_lm(model_dir))


@pytest.fixture(scope="module")
def plain_model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)


def test_log_probs_at_action_tokens_equal_those_of_each_episode_alone(actor, plain_model):
    episodes = random_episodes(6, VOCAB_SIZE)
    order = (3, 0, 5, 1, 2, 4)

    ours = log_probs(actor, collate(episodes, order, CPU)).tolist()

    assert ours == pytest.approx([lp for i in order for lp in plain_log_probs(plain_model, episodes[i])], abs=2e-6)


def test_a_shared_prefix_changes_neither_log_probs_nor_gradients(actor):
    batch = collate(random_episodes(5, VOCAB_SIZE, num_shared=12), (0, 1, 2, 3, 4), CPU)
    assert batch.num_shared >= 12
    gradients = []
    for num_shared in (0, batch.num_shared):
        actor.zero_grad()
        logp_N = log_probs(actor, batch, num_shared)
        logp_N.square().mean().backward()
        gradients.append([logp_N.detach(), *(p.grad.clone() for p in actor.parameters())])
    actor.zero_grad()

    for without, with_prefix in zip(*gradients, strict=True):
        torch.testing.assert_close(with_prefix, without, rtol=1e-4, atol=1e-5)


def test_log_probs_are_taken_at_the_temperature_of_each_request():
    """C07: logits 2, 1, 0 at temperature 0.5 give -0.142932 for the first token."""
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    scorer = copy.copy(Actor.__new__(Actor))
    torch.nn.Module.__init__(scorer)
    scorer.logits_at = lambda token_ids_BT, positions_N, num_shared, experts_BTLK: logits.expand(len(positions_N), 3)

    logp_N = scorer(torch.zeros(1, 1), torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([0.5, 1.0]))

    assert logp_N.tolist() == pytest.approx([-0.142932, -0.407606], abs=1e-6)


def test_a_fresh_critic_values_every_state_at_its_bias(actor):
    critic = Critic(actor.causal_lm, bias_init=0.5, freeze_pattern=FREEZE)
    batch = collate(random_episodes(3, VOCAB_SIZE), (0, 1, 2), CPU)

    assert set(critic(batch.token_ids_BT, batch.positions_N).tolist()) == {0.5}
    assert not critic.head.weight.any()


def test_attention_projections_and_embeddings_of_the_critic_are_frozen_and_the_rest_learns(actor):
    critic = Critic(actor.causal_lm, bias_init=0.0, freeze_pattern=FREEZE)
    frozen = {name for name, p in critic.named_parameters() if not p.requires_grad}

    layers = len(critic.backbone.layers)
    projections = {f"backbone.layers.{i}.self_attn.{p}_proj.weight" for i in range(layers) for p in "qkvo"}
    assert frozen == projections | {"backbone.embed_tokens.weight"}
    assert critic.num_frozen == len(projections)


def test_a_freeze_pattern_that_matches_nothing_is_an_error(actor):
    with pytest.raises(ConfigError, match="'no_such_layer' matches no parameter"):
        Critic(actor.causal_lm, bias_init=0.0, freeze_pattern="no_such_layer")


def test_the_critic_does_not_share_weights_with_the_actor(actor):
    critic = Critic(actor.causal_lm, bias_init=0.0, freeze_pattern=FREEZE)
    ours = {p.data_ptr() for p in actor.parameters()}

    assert not ours & {p.data_ptr() for p in critic.parameters()}


def test_an_architecture_with_other_layers_is_evaluated_the_plain_way():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    causal_lm = GPT2LMHeadModel(config).eval()
    episodes = random_episodes(4, 60, num_shared=10)

    ours = log_probs(Actor(causal_lm), collate(episodes, (0, 1, 2, 3), CPU)).tolist()

    assert ours == pytest.approx([lp for e in episodes for lp in plain_log_probs(causal_lm, e)], abs=2e-5)


@pytest.mark.parametrize("kind", [LlamaForCausalLM, Qwen2ForCausalLM, MistralForCausalLM])
def test_other_pre_norm_decoders_take_the_short_cuts_and_give_the_same_numbers(kind):
    torch.manual_seed(0)
    config = kind.config_class(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, initializer_range=0.3,
    )  # fmt: skip
    causal_lm = kind(config).eval()
    episodes = random_episodes(4, 60, num_shared=10)
    expected = [lp for e in episodes for lp in plain_log_probs(causal_lm, e)]
    batch = collate(episodes, (0, 1, 2, 3), CPU)

    ours = log_probs(Actor(causal_lm), batch).tolist()

    assert is_known_decoder(causal_lm.base_model)
    assert batch.num_shared >= 10
    assert ours == pytest.approx(expected, abs=5e-5)


def test_a_model_that_caps_its_logits_is_refused():
    config = Gemma2Config(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, intermediate_size=32, final_logit_softcapping=0.01,
    )  # fmt: skip

    with pytest.raises(ConfigError, match="Gemma2ForCausalLM changes its logits"):
        Actor(Gemma2ForCausalLM(config).eval())


def test_a_directory_without_a_model_is_a_configuration_error(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))

    with pytest.raises(ConfigError, match="cannot load a causal language model"):
        load_causal_lm(tmp_path)


def test_an_episode_of_one_action_is_scored(actor, plain_model):
    made = episode([3, 4], [0, 1])

    assert log_probs(actor, collate([made], (0,), CPU)).tolist() == pytest.approx(
        plain_log_probs(plain_model, made), abs=2e-6
    )
