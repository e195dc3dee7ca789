"""Where gradients of a tensor that several modules read are added, the same at every ZeRO stage.

Autograd adds them in the order they arrive. ZeRO-3 puts identity functions around every module, so what a module's own
operations say about its input is added first and the rest after it; without them a norm's two readings of a residual
and the residual's own arrive one by one. Floats do not associate: the sums differ in the last bit.

A view of the input in front of the modules concerned gives the grouping of ZeRO-3 at stages 1 and 2. It costs neither
memory nor arithmetic.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def sum_inside_modules_first(network: nn.Module) -> None:
    """For modules that read their input several times: RMS norms, and linear layers with an adapter beside them."""
    for module in network.modules():
        if type(module).__name__.endswith("RMSNorm") or hasattr(module, "lora_A"):
            module.register_forward_pre_hook(_with_view)


def _with_view(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *others = inputs
    assert isinstance(first, Tensor)
    return (first.view_as(first), *others)
