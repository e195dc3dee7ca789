"""Where an element stands in a flat tensor does not change what AdamW makes of it."""

import pytest
import torch

from online_agent.learner.adamw import even_adamw


def stepped(columns, begin, end):
    """(3, N) weights, first and second moments of the elements after one step on them alone."""
    weight, mean, square, gradient = (column[begin:end].clone() for column in columns)
    p = torch.nn.Parameter(weight)
    p.grad = gradient
    optimizer = even_adamw([p], lr=1e-2, weight_decay=0.1)
    optimizer.state[p] = {"step": torch.tensor(3.0), "exp_avg": mean, "exp_avg_sq": square}
    optimizer.step()
    return torch.stack([p.detach(), mean, square])


@pytest.fixture
def columns():
    generator = torch.Generator().manual_seed(0)
    weight, mean, square, gradient = torch.randn((4, 512), generator=generator)
    return weight, mean / 10, square**2 / 100, gradient


def test_every_part_of_a_flat_tensor_takes_the_step_of_the_whole(columns):
    whole = stepped(columns, 0, 512)

    for begin, size in [(0, 1), (3, 7), (16, 15), (5, 16), (40, 33), (1, 510)]:
        assert torch.equal(stepped(columns, begin, begin + size), whole[:, begin : begin + size]), (begin, size)


def test_a_step_is_the_one_of_adamw(columns):
    weight, mean, square, gradient = columns
    p = torch.nn.Parameter(weight.double())
    p.grad = gradient.double()
    plain = torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    plain.state[p] = {"step": torch.tensor(3.0), "exp_avg": mean.double(), "exp_avg_sq": square.double()}
    plain.step()

    torch.testing.assert_close(stepped(columns, 0, 509)[0].double(), p.detach()[:509], rtol=1e-5, atol=1e-6)


def test_parameters_without_a_gradient_stay(columns):
    p = torch.nn.Parameter(columns[0].clone())

    even_adamw([p], lr=1e-2, weight_decay=0.1).step()

    assert torch.equal(p, columns[0])
