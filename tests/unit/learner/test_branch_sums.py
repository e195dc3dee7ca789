"""Gradients of a residual are added in the order that ZeRO-3's identity functions around modules give."""

import torch
from torch import nn

from online_agent.learner.branch_sums import sum_inside_modules_first


class TinyRMSNorm(nn.Module):
    """Reads its input twice."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = TinyRMSNorm()
        self.mlp = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Identity(torch.autograd.Function):
    """What DeepSpeed's stage 3 puts around every module."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*(Residual() for _ in range(4)))


def gradient(network):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    (network(x) * weights).sum().backward()
    return x.grad


def with_identities(network):
    for module in network.modules():
        module.register_forward_pre_hook(lambda module, inputs: (Identity.apply(inputs[0]),))
        module.register_forward_hook(lambda module, inputs, out: Identity.apply(out))
    return network


def test_norms_in_a_residual_stack_give_the_bits_of_stage_3():
    plain, ours = stack(), stack()
    sum_inside_modules_first(ours)

    of_stage_3 = gradient(with_identities(stack()))

    assert torch.equal(gradient(ours), of_stage_3)
    assert not torch.equal(gradient(plain), of_stage_3)


def test_identities_change_nothing_that_is_grouped_already():
    ours = stack()
    sum_inside_modules_first(ours)

    assert torch.equal(gradient(with_identities(ours)), gradient(with_identities(stack())))


def test_modules_that_read_their_input_once_are_left_alone():
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    sum_inside_modules_first(network)

    assert not any(module._forward_pre_hooks for module in network.modules())
