from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from online_agent.config.training import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner.batching import collate, num_fed_tokens
from online_agent.learner.last_layer import is_known_decoder
from online_agent.learner.models import Actor, Critic, load_causal_lm
from online_agent.learner.packing import feed_packed
from online_agent.learner.routing import RoutingShape, choose_routing, prepare_mixtures, routing_fault, routing_weights
from tests.fakes.tiny_model import NUM_LAYERS, VOCAB_SIZE
from tests.fakes.tiny_moe import TINY_MIXTURE, write_tiny_moe
from tests.fakes.training_episodes import random_episodes

CPU = torch.device("cpu")
SHAPE = RoutingShape(NUM_LAYERS, TINY_MIXTURE.num_experts, TINY_MIXTURE.experts_per_token, tuple(range(NUM_LAYERS)))


@pytest.fixture(scope="module")
def moe_dir(tmp_path_factory):
    return write_tiny_moe(tmp_path_factory.mktemp("moe") / "model")


@pytest.fixture(scope="module")
def actor(moe_dir):
    return Actor(load_causal_lm(moe_dir))


@pytest.fixture(scope="module")
def plain_model(moe_dir):
    """The mixture as its library runs it."""
    return AutoModelForCausalLM.from_pretrained(moe_dir, dtype=torch.float32)


def log_probs(actor, batch, num_shared=None, experts_BTLK=None):
    shared = batch.num_shared if num_shared is None else num_shared
    inputs = (batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N)
    return actor(*inputs, shared, batch.experts_BTLK if experts_BTLK is None else experts_BTLK)


def own_experts(plain_model, token_ids):
    """(T, L, K) what the routers choose for one episode alone."""
    chosen = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda module, args, out: chosen.append(out[2]))
        for layer in plain_model.model.layers
    ]
    with torch.no_grad():
        plain_model(input_ids=torch.from_numpy(token_ids).long()[None])
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, 1).numpy().astype(np.uint8)


def with_own_experts(plain_model, episodes):
    return [replace(e, routed_experts=own_experts(plain_model, e.token_ids)) for e in episodes]


def with_random_experts(episodes, seed=0, num_shared=0):
    """Experts drawn without replacement, the same in the first ``num_shared`` tokens of all episodes."""
    rng = np.random.default_rng(seed)

    def draw(num_tokens):
        scores = rng.random((num_tokens, NUM_LAYERS, TINY_MIXTURE.num_experts))
        return scores.argsort(-1)[..., : TINY_MIXTURE.experts_per_token].astype(np.uint8)

    common = draw(num_shared)
    return [replace(e, routed_experts=np.concatenate([common, draw(len(e.token_ids) - num_shared)])) for e in episodes]


def test_chosen_experts_count_by_their_logits_alone_or_by_their_share_of_all():
    logits = torch.log(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    chosen = torch.tensor([[2, 0]])

    assert routing_weights(logits, chosen, is_normalised=True)[0].tolist() == pytest.approx([3 / 4, 1 / 4])
    assert routing_weights(logits, chosen, is_normalised=False)[0].tolist() == pytest.approx([3 / 10, 1 / 10])


@pytest.mark.parametrize("is_normalised", [True, False])
def test_the_gradient_of_what_chosen_experts_count_is_exact(is_normalised):
    torch.manual_seed(0)
    logits = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    chosen = torch.stack([torch.randperm(6)[:3] for _ in range(5)])

    assert torch.autograd.gradcheck(lambda x: routing_weights(x, chosen, is_normalised=is_normalised), logits)


def test_a_mixture_takes_the_short_cuts_and_gives_its_own_numbers(actor, plain_model):
    episodes = random_episodes(5, VOCAB_SIZE, num_shared=12)
    batch = collate(episodes, (0, 1, 2, 3, 4), CPU)
    expected = []
    for e in episodes:
        with torch.no_grad():
            logits_TV = plain_model(input_ids=torch.from_numpy(e.token_ids).long()[None]).logits[0] / e.temperature
        logp_TV = torch.log_softmax(logits_TV, -1)
        expected += [float(logp_TV[t - 1, e.token_ids[t]]) for t in np.flatnonzero(e.action_mask)]

    assert actor.routing_shape == SHAPE
    assert is_known_decoder(actor.causal_lm.base_model)
    assert batch.num_shared >= 12
    assert log_probs(actor, batch).tolist() == pytest.approx(expected, abs=2e-5)


def test_replaying_the_routers_own_choice_changes_nothing(actor, plain_model):
    episodes = random_episodes(5, VOCAB_SIZE, num_shared=12)
    without = collate(episodes, (0, 1, 2, 3, 4), CPU)
    replayed = collate(with_own_experts(plain_model, episodes), (0, 1, 2, 3, 4), CPU)

    assert replayed.num_shared == without.num_shared
    torch.testing.assert_close(log_probs(actor, replayed), log_probs(actor, without), rtol=0, atol=2e-6)


def test_replaying_another_choice_gives_what_a_mixture_of_these_experts_computes(actor, plain_model):
    """The library's own forward with its gates made to answer with the recorded experts and their weights."""
    (made,) = with_random_experts(random_episodes(1, VOCAB_SIZE))
    recorded = torch.from_numpy(made.routed_experts).long()
    hooks = []
    for number, layer in enumerate(plain_model.model.layers):

        def answer(module, args, out, number=number):
            chosen = out[0].gather(1, recorded[:, number])
            shares = torch.exp(chosen) / torch.exp(chosen).sum(-1, keepdim=True)
            return out[0], shares, recorded[:, number]

        hooks.append(layer.mlp.gate.register_forward_hook(answer))
    with torch.no_grad():
        logits_TV = plain_model(input_ids=torch.from_numpy(made.token_ids).long()[None]).logits[0] / made.temperature
    for hook in hooks:
        hook.remove()
    logp_TV = torch.log_softmax(logits_TV, -1)
    expected = [float(logp_TV[t - 1, made.token_ids[t]]) for t in np.flatnonzero(made.action_mask)]

    batch = collate([made], (0,), CPU)
    assert log_probs(actor, batch).tolist() == pytest.approx(expected, abs=1e-5)
    unlike = (log_probs(actor, batch) - log_probs(actor, replace(batch, experts_BTLK=None))).abs().max()
    assert float(unlike.detach()) > 0.01


def test_padding_packing_and_a_shared_prefix_change_no_replayed_number_and_no_gradient(actor):
    episodes = with_random_experts(random_episodes(5, VOCAB_SIZE, num_shared=12), num_shared=12)
    batch = collate(episodes, (0, 1, 2, 3, 4), CPU)
    alone = torch.cat([log_probs(actor, collate([e], (0,), CPU)) for e in episodes])
    assert batch.num_shared >= 12
    gradients = []
    for num_shared in (0, batch.num_shared):
        actor.zero_grad()
        logp_N = log_probs(actor, batch, num_shared)
        logp_N.square().mean().backward()
        torch.testing.assert_close(logp_N, alone, rtol=0, atol=2e-5)
        gradients.append([p.grad.clone() for p in actor.parameters()])
    actor.zero_grad()
    for without, with_prefix in zip(*gradients, strict=True):
        torch.testing.assert_close(with_prefix, without, rtol=1e-4, atol=1e-5)


def test_rows_laid_end_to_end_replay_the_same_numbers(actor, moe_dir):
    causal_lm = load_causal_lm(moe_dir)
    packed = Actor(causal_lm)
    feed_packed(causal_lm, LearnerSettings())
    batch = collate(with_random_experts(random_episodes(5, VOCAB_SIZE)), (0, 1, 2, 3, 4), CPU)

    torch.testing.assert_close(log_probs(packed, batch, 0), log_probs(actor, batch, 0), rtol=0, atol=2e-5)


def test_a_common_prefix_that_was_routed_in_different_ways_is_not_shared():
    episodes = random_episodes(3, VOCAB_SIZE, num_shared=20)
    alike = collate(with_random_experts(episodes, num_shared=20), (0, 1, 2), CPU)
    unlike = collate(with_random_experts(episodes, num_shared=11), (0, 1, 2), CPU)

    assert alike.num_shared >= 20
    assert 11 <= unlike.num_shared < 14


def test_the_gradient_of_a_replayed_router_is_that_of_finite_differences(moe_dir):
    causal_lm = load_causal_lm(moe_dir).double()
    causal_lm.set_experts_implementation("eager")  # torch's grouped product knows no float64
    actor = Actor(causal_lm)
    batch = collate(with_random_experts(random_episodes(2, VOCAB_SIZE)), (0, 1), CPU)
    batch = replace(batch, temperature_N=batch.temperature_N.double())
    gate = actor.causal_lm.model.layers[0].mlp.gate.weight

    def loss():
        logits_NV = actor.logits_at(batch.token_ids_BT, batch.positions_N, 0, batch.experts_BTLK)
        return torch.log_softmax(logits_NV, -1).gather(1, batch.targets_N[:, None]).mean()

    loss().backward()
    step = 2e-3  # the norms of this model work in fp32, whatever its weights are
    for expert, width in ((0, 3), (2, 40), (3, 17)):
        with torch.no_grad():
            sides = []
            for sign in (1, -1):
                gate[expert, width] += sign * step
                sides.append(loss().item())
                gate[expert, width] -= sign * step
        assert float(gate.grad[expert, width]) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=2e-3)
        assert abs(float(gate.grad[expert, width])) > 1e-4


def test_gradients_reach_the_replayed_experts_and_their_router_rows_only(actor):
    (made,) = random_episodes(1, VOCAB_SIZE)
    made = replace(made, routed_experts=np.tile(np.uint8([3, 1]), (len(made.token_ids), NUM_LAYERS, 1)))
    actor.zero_grad()
    log_probs(actor, collate([made], (0,), CPU)).sum().backward()

    for layer in actor.causal_lm.model.layers:
        for gradient in (layer.mlp.gate.weight.grad, layer.mlp.experts.gate_up_proj.grad):
            size_E = gradient.flatten(1).abs().amax(1)
            assert size_E[[0, 2]].tolist() == [0.0, 0.0]
            assert (size_E[[1, 3]] > 0).all()
    actor.zero_grad()


def test_a_forward_without_recorded_experts_is_not_touched_by_one_with_them(actor):
    episodes = random_episodes(2, VOCAB_SIZE)
    plain = collate(episodes, (0, 1), CPU)
    before = log_probs(actor, plain)
    log_probs(actor, collate(with_random_experts(episodes), (0, 1), CPU))

    torch.testing.assert_close(log_probs(actor, plain), before, rtol=0, atol=0)


def test_a_micro_batch_has_experts_only_when_all_its_rows_have():
    whole = with_random_experts(random_episodes(3, VOCAB_SIZE))
    batch = collate(whole, (2, 0), CPU)

    for row, chosen in enumerate((2, 0)):
        num_fed = num_fed_tokens(whole[chosen])
        recorded = torch.from_numpy(whole[chosen].routed_experts[:num_fed])
        torch.testing.assert_close(batch.experts_BTLK[row, :num_fed], recorded, rtol=0, atol=0)
        assert not batch.experts_BTLK[row, num_fed:].any()
    assert collate([whole[0], replace(whole[1], routed_experts=None)], (0, 1), CPU).experts_BTLK is None
    assert collate(whole, (), CPU).experts_BTLK is None


def test_what_cannot_be_replayed_is_named():
    (made,) = with_random_experts(random_episodes(1, VOCAB_SIZE))
    experts = made.routed_experts

    def fault(changed):
        return routing_fault(replace(made, routed_experts=changed), SHAPE)

    beyond, twice = experts.copy(), experts.copy()
    beyond[4, 1, 0] = 4
    twice[4, 1] = 2
    assert routing_fault(made, SHAPE) is None
    assert "not recorded" in fault(None)
    assert "shape" in fault(experts[:-1])
    assert "shape" in fault(experts[:, :1])
    assert fault(beyond) == "expert 4 is recorded, the model has 4"
    assert fault(twice) == "an expert is recorded twice for one token"


def test_rows_behind_the_last_fed_token_are_not_judged():
    (made,) = with_random_experts(random_episodes(1, VOCAB_SIZE))
    made.routed_experts[num_fed_tokens(made) :] = 0

    assert routing_fault(made, SHAPE) is None


def test_a_recipe_that_replays_refuses_an_episode_without_experts_and_others_train_it():
    whole = with_random_experts(random_episodes(3, VOCAB_SIZE))
    torn = [whole[0], replace(whole[1], routed_experts=None), whole[2]]

    assert choose_routing(whole, SHAPE, is_replayed=True) == (whole, None)
    assert choose_routing(torn, SHAPE, is_replayed=True)[1] == (
        "episode e1: the engine's choice of experts is not recorded for every token"
    )
    for shape, is_replayed in ((SHAPE, False), (None, True)):
        chosen, reason = choose_routing(torn, shape, is_replayed=is_replayed)
        assert reason is None
        assert [e.routed_experts for e in chosen] == [None, None, None]


def test_the_critic_of_a_mixture_freezes_attention_and_trains_experts_and_routers(actor):
    critic = Critic(actor.causal_lm, bias_init=0.0, freeze_pattern=LearnerSettings().critic_freeze_pattern)
    frozen = {name for name, p in critic.named_parameters() if not p.requires_grad}
    trained = {name for name, p in critic.named_parameters() if p.requires_grad}

    assert critic.num_frozen == 4 * NUM_LAYERS
    assert all(".self_attn." in name or ".embed_tokens." in name for name in frozen)
    for layer in range(NUM_LAYERS):
        for part in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):
            assert f"backbone.layers.{layer}.mlp.{part}" in trained
    batch = collate(random_episodes(2, VOCAB_SIZE), (0, 1), CPU)
    torch.nn.init.ones_(critic.head.weight)
    critic(batch.token_ids_BT, batch.positions_N).sum().backward()
    for name, parameter in critic.named_parameters():
        assert (parameter.grad is not None) == (name in trained)
        if name.endswith(("experts.down_proj", "gate.weight")):
            assert parameter.grad.abs().sum() > 0


def test_a_mixture_of_an_unknown_kind_is_refused():
    config = MixtralConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="MixtralForCausalLM is a mixture"):
        prepare_mixtures(MixtralForCausalLM(config))
