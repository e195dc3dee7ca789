"""Experts as training holds them and as checkpoints name them.

Training has two tensors per mixture, ``experts.gate_up_proj`` (E, 2I, H) and ``experts.down_proj`` (E, H, I); a
checkpoint, and the engine that loads it, has one per expert and projection: ``experts.3.gate_proj.weight`` (I, H), ...
E experts, H width, I width of an expert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_FUSED_GATE_UP, _FUSED_DOWN = ".experts.gate_up_proj", ".experts.down_proj"
_OF_AN_EXPERT = re.compile(
    r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<projection>gate_proj|up_proj|down_proj)\.weight"
)


def split_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names of a checkpoint; what belongs to no mixture stays as it is."""
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_FUSED_GATE_UP):
            experts = name.removesuffix(".gate_up_proj")
            for number, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2)
                split[f"{experts}.{number}.gate_proj.weight"] = gate
                split[f"{experts}.{number}.up_proj.weight"] = up
        elif name.endswith(_FUSED_DOWN):
            experts = name.removesuffix(".down_proj")
            split |= {f"{experts}.{number}.down_proj.weight": down for number, down in enumerate(tensor)}
        else:
            split[name] = tensor
    return split


def fuse_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``split_experts``. Raises KeyError naming the first tensor of an expert that is missing."""
    fused: dict[str, Tensor] = {}
    num_experts: dict[str, int] = {}
    for name, tensor in tensors.items():
        match = _OF_AN_EXPERT.fullmatch(name)
        if match is None:
            fused[name] = tensor
        else:
            experts = match["experts"]
            num_experts[experts] = max(num_experts.get(experts, 0), int(match["number"]) + 1)
    for experts, count in num_experts.items():
        rows = [{p: tensors[f"{experts}.{e}.{p}_proj.weight"] for p in ("gate", "up", "down")} for e in range(count)]
        fused[f"{experts}.gate_up_proj"] = torch.stack([torch.cat([row["gate"], row["up"]]) for row in rows])
        fused[f"{experts}.down_proj"] = torch.stack([row["down"] for row in rows])
    return fused
