"""Muon in float32."""

from __future__ import annotations

import pytest
import torch

from online_agent.seed_policy.muon import Muon, orthogonalise
from online_agent.seed_policy.sft import SftSettings, learning_rate_share


def test_singular_values_come_near_one_and_the_directions_stay():
    torch.manual_seed(0)
    matrices = torch.randn(3, 8, 20)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    rotated = left.mT @ orthogonalise(matrices) @ right.mT
    diagonal = rotated.diagonal(dim1=1, dim2=2)
    assert ((diagonal > 0.6) & (diagonal < 1.3)).all()
    assert (rotated - torch.diag_embed(diagonal)).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_it_takes_the_steps_of_the_library_up_to_its_bfloat16(shape):
    torch.manual_seed(1)
    ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    mine = Muon([ours], lr=0.02)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        gradient = torch.randn(shape)
        for parameter, optimizer in ((ours, mine), (theirs, reference)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=2e-3)
    assert (ours - 1).abs().max() > 5e-3


def test_a_parameter_without_gradient_stays():
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    Muon([parameter], lr=1.0).step()
    assert parameter.equal(torch.ones(2, 2))


def test_the_learning_rate_warms_up_holds_and_falls_to_its_end():
    settings = SftSettings(steps=101, warmup_steps=10, constant_share=0.4, final_lr_share=0.02)
    assert learning_rate_share(0, settings) == pytest.approx(0.1)
    assert learning_rate_share(9, settings) == learning_rate_share(40, settings) == 1.0
    assert learning_rate_share(100, settings) == pytest.approx(0.02)
    assert learning_rate_share(70, settings) == pytest.approx(1 - 0.98 * 29.6 / 59.6)
