"""An engine with the surface of ``ZeroEngine`` that works in float64, so that a step can be compared to 1e-6."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from online_agent.learner.zero_engine import Applied


class Float64Engine:
    """Plain autograd and no optimiser: ``gradients`` is what was held when the first update was asked for."""

    def __init__(self, network: nn.Module, *, lr: float, **_: Any) -> None:
        self.network = network.double()
        self.lr = lr
        self.num_updates = 0
        self.gradients: dict[str, Tensor] = {}
        self.grads_of_outputs: list[Tensor] = []

    def __call__(self, *args: Any) -> Tensor:
        out: Tensor = self.network(*args)
        if out.requires_grad:
            slot = len(self.grads_of_outputs)
            self.grads_of_outputs.append(torch.zeros_like(out))
            out.register_hook(lambda gradient: self.grads_of_outputs.__setitem__(slot, gradient.clone()))
        return out

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def apply(self) -> Applied:
        if not self.gradients:
            held = {n: p.grad for n, p in self.network.named_parameters() if p.grad is not None}
            self.gradients = {name: gradient.clone() for name, gradient in held.items()}
        norm = torch.stack([g.norm() for g in self.gradients.values()]).norm()
        self.network.zero_grad()
        self.num_updates += 1
        return Applied(True, float(norm))

    def discard(self) -> None:
        self.network.zero_grad()

    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.network.named_parameters()}
