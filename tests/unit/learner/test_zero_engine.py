"""What a ZeRO engine holds, clips and drops is the same at every stage."""

import pytest
import torch
from torch import nn

from online_agent.config.training import LearnerSettings
from online_agent.learner.ranks import join_ranks
from online_agent.learner.zero_engine import ZeroEngine
from tests.fakes.deepspeed_warnings import SILENCED

pytestmark = SILENCED
WEIGHT = torch.tensor([[1.0, -2.0, 0.5]])


@pytest.fixture(params=[1, 2, 3])
def new_engine(request):
    def make(clip_norm=1e9):
        settings = LearnerSettings(zero_stage=request.param)
        network = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            network.weight.copy_(WEIGHT)
        return ZeroEngine(network, lr=0.1, clip_norm=clip_norm, settings=settings, ranks=join_ranks(settings))

    return make


def add_gradient(engine, *values):
    """The loss is the output, so its gradient in the weights is the input."""
    engine.backward(engine(torch.tensor([values])).sum())


def state(engine):
    return {n: t.clone() for n, t in {**engine.parameters(), **engine.moments()}.items()}


def test_gradients_of_several_passes_add_up(new_engine):
    engine = new_engine()
    add_gradient(engine, 1.0, 0.0, 2.0)
    add_gradient(engine, 2.0, 4.0, 0.0)
    add_gradient(engine, 0.0, 0.0, 10.0)

    applied = engine.apply()

    assert applied.is_applied
    assert applied.grad_norm == pytest.approx(13.0, rel=1e-7)  # of (3, 4, 12)
    moment = engine.moments()["exp_avg.weight"]
    torch.testing.assert_close(moment, torch.tensor([[0.3, 0.4, 1.2]]), rtol=1e-6, atol=0)
    assert engine.num_updates == 1


def test_a_gradient_beyond_the_limit_is_scaled_to_it_and_its_own_norm_is_told(new_engine):
    engine = new_engine(clip_norm=6.5)
    add_gradient(engine, 3.0, 4.0, 12.0)

    assert engine.apply().grad_norm == pytest.approx(13.0, rel=1e-7)

    moment = engine.moments()["exp_avg.weight"]
    torch.testing.assert_close(moment, torch.tensor([[0.15, 0.2, 0.6]]), rtol=1e-6, atol=0)


def test_nothing_of_one_update_is_left_for_the_next(new_engine):
    engine = new_engine()
    for _ in range(2):
        add_gradient(engine, 0.0, 3.0, 4.0)
        assert engine.apply().grad_norm == pytest.approx(5.0, rel=1e-7)


def test_what_is_discarded_leaves_no_trace(new_engine):
    engine, other = new_engine(), new_engine()
    before = state(engine)
    add_gradient(engine, 5.0, 6.0, 7.0)
    add_gradient(engine, 1.0, 1.0, 1.0)

    engine.discard()

    assert engine.num_updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(engine).items())
    for each in (engine, other):
        add_gradient(each, 1.0, 2.0, 2.0)
        assert each.apply().grad_norm == pytest.approx(3.0, rel=1e-7)
    assert all(torch.equal(tensor, state(other)[name]) for name, tensor in state(engine).items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_dropped(new_engine, value):
    engine = new_engine()
    before = state(engine)
    add_gradient(engine, 1.0, 1.0, 1.0)
    add_gradient(engine, 0.0, value, 0.0)

    assert not engine.apply().is_applied

    assert engine.num_updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(engine).items())
    add_gradient(engine, 1.0, 2.0, 2.0)
    assert engine.apply().grad_norm == pytest.approx(3.0, rel=1e-7)
