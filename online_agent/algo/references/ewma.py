"""A slowly moving copy of the policy's parameters (PPO-EWMA, Hilton et al. 2021; revised in arXiv 2605.12070)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_PARAMETER_PREFIX = "parameters."
_WEIGHT_KEY = "weight"
_AGE_KEY = "age_versions"


def ewma_beta(staleness_versions: float) -> float:
    """beta = W / (W + 2): the mean age beta / (1 - beta) = W / 2 is the middle of the version window W."""
    if staleness_versions < 0:
        raise ValueError(f"staleness cannot be negative, got {staleness_versions}")
    return staleness_versions / (staleness_versions + 2.0)


class EwmaReference:
    """The bias-corrected average of published parameters, in fp32:

        w' = beta w + 1;  prox' = (beta w prox + theta) / w';  start and reset: w = 1, prox = theta

    ``parameters`` maps names to fp32 tensors (fp64 stays fp64) owned by this object. Update once per version.
    ``age_versions`` is the mean age of what is in the average, weighed as it is: the newest version has age 0.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.weight = 1.0
        self.age_versions = 0.0
        self.parameters = {name: _own(tensor) for name, tensor in parameters.items()}

    def update(self, parameters: Mapping[str, Tensor], beta: float) -> None:
        """One published version enters the average. Raises KeyError when the names differ."""
        self._check_names(parameters)
        old = beta * self.weight
        self.weight = old + 1.0
        self.age_versions = old * (self.age_versions + 1.0) / self.weight
        for name, average in self.parameters.items():
            theta = parameters[name].detach().to(average)
            average.mul_(old / self.weight).add_(theta, alpha=1.0 / self.weight)

    def reset(self, parameters: Mapping[str, Tensor]) -> None:
        """Forget the past: prox = theta, w = 1."""
        self._check_names(parameters)
        self.weight, self.age_versions = 1.0, 0.0
        for name, average in self.parameters.items():
            average.copy_(parameters[name].detach())

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors only, fit for safetensors: weight and age (0-d fp64), each parameter under ``parameters.<name>``."""
        state = {f"{_PARAMETER_PREFIX}{name}": tensor.clone() for name, tensor in self.parameters.items()}
        state[_WEIGHT_KEY] = torch.tensor(self.weight, dtype=torch.float64)
        state[_AGE_KEY] = torch.tensor(self.age_versions, dtype=torch.float64)
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> EwmaReference:
        """The reference ``state_dict`` was taken from, bit for bit."""
        reference = cls(
            {
                name.removeprefix(_PARAMETER_PREFIX): tensor
                for name, tensor in state.items()
                if name.startswith(_PARAMETER_PREFIX)
            }
        )
        reference.weight = float(state[_WEIGHT_KEY])
        # Averages of 0.1.0 were saved without their age.
        reference.age_versions = float(state.get(_AGE_KEY, torch.zeros(())))
        return reference

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a saved state in place. Raises KeyError when the names differ."""
        loaded = EwmaReference.from_state_dict(state)
        self._check_names(loaded.parameters)
        for name, average in self.parameters.items():
            average.copy_(loaded.parameters[name])
        self.weight, self.age_versions = loaded.weight, loaded.age_versions

    def _check_names(self, parameters: Mapping[str, Tensor]) -> None:
        differing = sorted(set(self.parameters) ^ set(parameters))
        if differing:
            raise KeyError(f"parameters differ from the reference's, first: {differing[0]}")


def _own(tensor: Tensor) -> Tensor:
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.detach().to(dtype, copy=True)
