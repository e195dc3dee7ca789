import pytest
import torch

from online_agent.algo.references import ActiveTokens
from online_agent.learner.batching import collate
from online_agent.learner.models import Actor, load_causal_lm
from online_agent.learner.reference import RESET_BELOW_TAU, PolicyReference
from online_agent.recipes.parts import Ewma
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

ALL_ACTIVE = ActiveTokens(num_actions=10, num_in_mask=10, num_active=10)
TOO_FEW = ActiveTokens(num_actions=10, num_in_mask=9, num_active=8)


@pytest.fixture(scope="module")
def actor(model_dir):
    return Actor(load_causal_lm(model_dir))


def reference_of(actor, staleness_versions=None):
    return PolicyReference(actor, Ewma(tau=0.9, staleness_versions=staleness_versions))


def filled(actor, value):
    return {name: torch.full_like(p, value) for name, p in actor.named_parameters()}


def averages(reference):
    tensors = [t for name, t in reference.tensors().items() if name.startswith("parameters.")]
    values = {round(float(v), 6) for t in tensors for v in t.unique()}
    assert len(values) == 1
    return values.pop()


def test_published_versions_enter_the_average_as_in_vector_c(actor):
    """W = 4, beta = 2/3: w and prox of algorithms vector C for theta 0, 1, 3."""
    reference = reference_of(actor, staleness_versions=4)
    reference.begin(filled(actor, 0.0))
    seen = []
    for theta in (1.0, 3.0):
        assert reference.publish(filled(actor, theta), [2], ALL_ACTIVE) is None
        seen.append((round(reference.weight, 6), averages(reference)))

    assert seen == [(1.666667, 0.6), (2.111111, 1.736842)]


def test_too_few_active_tokens_replace_the_average_by_the_new_actor(actor):
    reference = reference_of(actor, staleness_versions=4)
    reference.begin(filled(actor, 0.0))
    reference.publish(filled(actor, 1.0), [2], ALL_ACTIVE)

    reset = reference.publish(filled(actor, 4.0), [2], TOO_FEW)

    assert (reset.cause, reset.active_share) == (RESET_BELOW_TAU, 0.8)
    assert (reference.weight, averages(reference), reference.num_resets) == (1.0, 4.0, 1)


def test_a_share_of_exactly_tau_does_not_reset(actor):
    reference = reference_of(actor)

    assert reference.publish(filled(actor, 1.0), [], ActiveTokens(10, 9, 9)) is None


def test_beta_follows_the_measured_staleness_of_the_last_batches(actor):
    reference = reference_of(actor)
    assert reference.beta == 0
    reference.publish(filled(actor, 1.0), [1, 3], ALL_ACTIVE)

    assert reference.beta == pytest.approx(0.5)

    for _ in range(8):
        reference.publish(filled(actor, 1.0), [6], ALL_ACTIVE)
    assert reference.beta == pytest.approx(6 / 8)


def test_against_itself_every_token_is_active(actor):
    reference = reference_of(actor)
    batch = collate(random_episodes(4, VOCAB_SIZE), (0, 1, 2, 3), torch.device("cpu"))
    with torch.no_grad():
        logp_N = actor(batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N)
    on_policy = type(batch)(**{f: getattr(batch, f) for f in batch.__slots__} | {"logp_mu_N": logp_N})

    active = reference.probe(on_policy, logp_N=logp_N, advantages_N=torch.ones_like(logp_N))

    assert active.ratio == active.ratio_mask_only == 1.0
    assert active.num_actions == len(logp_N)


def test_the_probe_evaluates_the_average_not_the_actor(actor):
    """A reference of zero weights is uniform: tokens the actor's rollout held at 3x uniform leave the mask."""
    reference = reference_of(actor)
    reference.begin(filled(actor, 0.0))
    batch = collate(random_episodes(4, VOCAB_SIZE), (0, 1, 2, 3), torch.device("cpu"))
    logp_N = batch.logp_mu_N + torch.tensor(3.0).log()
    shifted = type(batch)(**{f: getattr(batch, f) for f in batch.__slots__} | {"logp_mu_N": logp_N})

    active = reference.probe(shifted, logp_N=logp_N, advantages_N=torch.ones_like(logp_N))

    assert active.ratio == active.ratio_mask_only == 0.0
