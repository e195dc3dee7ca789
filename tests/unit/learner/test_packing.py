"""Rows laid end to end give what padded rows give."""

import copy
import dataclasses

import pytest
import torch

from online_agent.config.training import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner import packing
from online_agent.learner.batching import collate
from online_agent.learner.models import Actor, Critic, load_causal_lm
from online_agent.learner.packing import feed_packed, feeds_packed, pack
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

CPU = torch.device("cpu")
SETTINGS = LearnerSettings()
pytestmark = SILENCED


def test_rows_are_fed_up_to_the_last_position_that_is_read():
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]])

    packed = pack(ids, torch.tensor([1, 2, 5]))

    assert packed.token_ids_S.tolist() == [1, 2, 3, 5, 6, 7]
    assert packed.position_ids_S.tolist() == [0, 1, 2, 0, 1, 0]
    assert packed.positions_N.tolist() == [1, 2, 4]
    assert packed.cu_seqlens.tolist() == [0, 3, 5, 6]
    assert packed.longest == 3


def test_a_filler_feeds_one_token_and_reads_none():
    packed = pack(torch.tensor([[0]]), torch.empty(0, dtype=torch.int64))

    assert packed.token_ids_S.tolist() == [0]
    assert packed.positions_N.numel() == 0


def gradients(network, loss):
    network.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.fixture
def padded_and_packed(model_dir):
    padded = load_causal_lm(model_dir)
    packed = copy.deepcopy(padded)
    return padded, packed


@pytest.mark.parametrize("num_shared", [0, 12])
def test_log_probs_and_their_gradient_are_those_of_padded_rows(padded_and_packed, num_shared):
    padded, packed = (Actor(causal_lm) for causal_lm in padded_and_packed)
    feed_packed(packed.causal_lm, SETTINGS)
    batch = collate(random_episodes(5, VOCAB_SIZE, num_shared=num_shared), (0, 1, 2, 3, 4), CPU)
    weight_N = torch.linspace(-1, 1, len(batch.positions_N))

    def logp(actor):
        return actor(batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, batch.num_shared)

    ours, theirs = logp(packed), logp(padded)

    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    expected = gradients(padded, (theirs * weight_N).sum())
    for name, gradient in gradients(packed, (ours * weight_N).sum()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_row_sees_nothing_of_the_rows_before_it(padded_and_packed):
    actor = Actor(padded_and_packed[1])
    feed_packed(actor.causal_lm, SETTINGS)
    episodes = random_episodes(2, VOCAB_SIZE)
    other = dataclasses.replace(episodes[0], token_ids=(episodes[0].token_ids + 1) % VOCAB_SIZE)

    def second_rows_logits(first):
        batch = collate([first, episodes[1]], (0, 1), CPU)
        is_second_N = batch.positions_N >= batch.token_ids_BT.shape[1]
        with torch.no_grad():
            return actor.logits_at(batch.token_ids_BT, batch.positions_N)[is_second_N]

    torch.testing.assert_close(second_rows_logits(episodes[0]), second_rows_logits(other), rtol=0, atol=1e-6)


def test_a_critic_of_a_packed_policy_is_packed_too(padded_and_packed, model_dir):
    causal_lm = padded_and_packed[1]
    Actor(causal_lm)
    feed_packed(causal_lm, SETTINGS)

    def critic_of(model):
        torch.manual_seed(0)
        critic = Critic(model, bias_init=0.5, freeze_pattern="self_attn")
        torch.nn.init.normal_(critic.head.weight)
        return critic

    packed, padded = critic_of(causal_lm), critic_of(padded_and_packed[0])
    batch = collate(random_episodes(4, VOCAB_SIZE), (0, 1, 2, 3), CPU)

    assert feeds_packed(packed.backbone)
    assert not feeds_packed(padded.backbone)
    values = [critic(batch.token_ids_BT, batch.positions_N, batch.num_shared) for critic in (packed, padded)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("is_installed", "dtype", "words"),
    [(False, "bfloat16", "needs the package flash-attn"), (True, "float32", "needs learner.dtype = 'bfloat16'")],
)
def test_packing_on_cuda_says_what_it_needs(padded_and_packed, monkeypatch, is_installed, dtype, words):
    monkeypatch.setattr(packing, "is_flash_attn_2_available", lambda: is_installed)
    causal_lm = padded_and_packed[0]
    Actor(causal_lm)

    with pytest.raises(ConfigError, match=words):
        feed_packed(causal_lm, LearnerSettings(device="cuda", dtype=dtype))
    assert not feeds_packed(causal_lm.base_model)


def test_a_model_with_layers_of_another_kind_is_refused(padded_and_packed):
    with pytest.raises(ConfigError, match="does not know the layers"):
        feed_packed(padded_and_packed[0], SETTINGS)


LOSSES = ("actor/loss", "actor/grad_norm", "critic/loss", "critic/loss_last", "critic/grad_norm", "ewma/active_share")


@pytest.mark.parametrize("recipe", ["sao", "sat-grpo"])
def test_steps_of_a_packed_trainer_are_those_of_one_that_pads(make_trainer, recipe):
    padded = make_trainer(recipe, micro_batch_tokens=90)
    packed = make_trainer(recipe, micro_batch_tokens=90, batching="packed")
    episodes = [dataclasses.replace(e, group_id=f"g{i // 4}") for i, e in enumerate(random_episodes(8, VOCAB_SIZE))]

    for version in range(2):
        expected, got = (t.step(episodes, version=version, is_warmup=False) for t in (padded, packed))
        assert got.metrics["batch/non_pad_share"] == 1.0 > expected.metrics["batch/non_pad_share"]
        measured = {key: expected.metrics[key] for key in LOSSES if expected.metrics[key] is not None}
        assert {key: got.metrics[key] for key in measured} == pytest.approx(measured, rel=1e-5)
    for name, parameter in padded.actor.parameters().items():
        torch.testing.assert_close(packed.actor.parameters()[name], parameter, rtol=0, atol=1e-5, msg=name)
