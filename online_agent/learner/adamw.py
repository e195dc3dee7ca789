"""Fused AdamW whose result for an element does not depend on where the element stands.

On a CPU the fused kernel takes what remains after whole vectors element by element, with other rounding of
``exp_avg_sq``. Which elements those are depends on how ZeRO cuts parameters into shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw

ADAM_BETAS = (0.9, 0.95)
MOMENTS = ("exp_avg", "exp_avg_sq")

# fp32 elements of the widest vector the kernel is compiled for (AVX-512).
_VECTOR = 16


def even_adamw(parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with ``ADAM_BETAS``. Moments must exist before its first step."""
    # foreach would copy the one flat partition; fused walks it once.
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=ADAM_BETAS, weight_decay=weight_decay, fused=True)
    remainders: list[tuple[Tensor, Tensor]] = []

    def work_remainders_out(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.device.type == "cpu" and p.numel() % _VECTOR:
                    remainders.extend(_stepped_remainder(p, optimizer.state[p], group))

    def write_remainders(optimizer: Any, args: Any, kwargs: Any) -> None:
        for remainder, stepped in remainders:
            remainder.copy_(stepped)
        remainders.clear()

    optimizer.register_step_pre_hook(work_remainders_out)
    optimizer.register_step_post_hook(write_remainders)
    return optimizer


@torch.no_grad()
def _stepped_remainder(p: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The ends of ``p`` and its moments, past whole vectors, and what a step makes of them as part of a vector."""
    assert p.grad is not None
    size = p.numel() % _VECTOR
    ends = [x.detach().flatten()[-size:] for x in (p, state["exp_avg"], state["exp_avg_sq"], p.grad)]
    filled_up = [F.pad(end, (0, _VECTOR - size)) for end in ends]
    weight, mean, square, gradient = ([x] for x in filled_up)
    beta1, beta2 = group["betas"]
    adamw(
        weight,
        gradient,
        mean,
        square,
        [],
        [state["step"].clone()],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    return [(end, stepped[:size]) for end, stepped in zip(ends[:3], filled_up[:3], strict=True)]
