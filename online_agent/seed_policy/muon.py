"""Muon in float32: momentum whose update is orthogonalised (Jordan et al. 2024), scaled to AdamW's usual step size.

``torch.optim.Muon`` orthogonalises one matrix at a time in bfloat16, which takes as long as the whole backward pass
on a CPU without bfloat16 units. Here matrices of one shape go through the iteration together, in their own type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPSILON = 1e-7
_ADAMW_RMS = 0.2
"""Root mean square of a typical AdamW step in units of its learning rate (Liu et al. 2025, section 2.2)."""


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Each matrix with its singular values brought near 1, by five quintic Newton-Schulz iterations.

    matrices_NRC (N, rows, columns) with rows <= columns.
    """
    a, b, c = _COEFFICIENTS
    x_NRC: Tensor = matrices_NRC / matrices_NRC.flatten(1).norm(dim=1).clamp(min=_EPSILON)[:, None, None]
    for _ in range(_ITERATIONS):
        gram_NRR = x_NRC @ x_NRC.mT
        x_NRC = torch.baddbmm(x_NRC, torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c), x_NRC, beta=a)
    return x_NRC


class Muon(torch.optim.Optimizer):
    """For 2-D parameters. lr is AdamW's for the same model; Nesterov momentum, no weight decay."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    by_shape[param.shape].append(param)
            for params in by_shape.values():
                self._step_together(params, group["lr"], group["momentum"])

    def _step_together(self, params: list[Tensor], lr: float, momentum: float) -> None:
        updates = []
        for param in params:
            assert param.grad is not None
            buffer = self.state[param].setdefault("momentum_buffer", torch.zeros_like(param))
            buffer.lerp_(param.grad, 1 - momentum)
            updates.append(param.grad.lerp(buffer, momentum))
        stacked = torch.stack(updates)
        is_tall = stacked.shape[1] > stacked.shape[2]
        directions = orthogonalise(stacked.mT if is_tall else stacked)
        scale = lr * _ADAMW_RMS * max(stacked.shape[1:]) ** 0.5
        for param, direction in zip(params, directions.mT if is_tall else directions, strict=True):
            param.add_(direction, alpha=-scale)
