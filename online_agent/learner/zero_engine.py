"""One network under DeepSpeed ZeRO: any number of backward passes, then one update or none.

Each backward pass is averaged over ranks, each rank keeps its share, and shares are summed over passes (losses are
scaled for that by the caller); norm and clipping are ours. So every stage does the same additions in the same order.
DeepSpeed's own would differ: stage 1 sums passes before ranks, stages 1 and 2 round the squared norm to fp32.
Parameters are fp32 in every mode: bf16 runs under autocast, so master weights and parameters are one and the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from online_agent.config.training import LearnerSettings
from online_agent.learner.adamw import MOMENTS, even_adamw
from online_agent.learner.branch_sums import sum_inside_modules_first
from online_agent.learner.ranks import Ranks

_NORM_EPSILON = 1e-6
_MAX_BUCKET_ELEMENTS = 500_000_000


@dataclass(frozen=True, slots=True)
class Applied:
    """``grad_norm`` before clipping. ``is_applied`` False: it was not finite, and every weight and moment is kept."""

    is_applied: bool
    grad_norm: float


class ZeroEngine:
    """A network, its optimiser and its DeepSpeed engine. All methods are collectives."""

    def __init__(
        self, network: nn.Module, *, lr: float, clip_norm: float, settings: LearnerSettings, ranks: Ranks
    ) -> None:
        import deepspeed

        self.network = network.to(ranks.device)
        self.stage = settings.zero_stage
        self._ranks = ranks
        self._clip_norm = clip_norm
        # Stages 1 and 2: this rank's share of the gradient by parameter group. Stage 3 sums in its own buffers.
        self._held: dict[int, list[Tensor]] = {}
        trainable = [p for p in network.parameters() if p.requires_grad]
        sum_inside_modules_first(network)
        self._engine, *_ = deepspeed.initialize(
            model=network,
            model_parameters=trainable,
            optimizer=even_adamw(trainable, lr=lr, weight_decay=settings.weight_decay),
            config=_config(settings, num_trainable=sum(p.numel() for p in trainable)),
            dist_init_required=False,
        )
        self._allocate_moments()

    @property
    def lr(self) -> float:
        return float(self._engine.optimizer.param_groups[0]["lr"])

    @property
    def num_updates(self) -> int:
        """Updates that were applied since the optimiser was new."""
        return int(next(iter(self._adam_state().values()))["step"])

    def __call__(self, *args: Tensor | int | None) -> Any:
        return self._engine(*args)

    def backward(self, loss: Tensor) -> None:
        """The gradient of ``loss``, averaged over ranks, is added to what is held."""
        self._engine.backward(loss)
        if self.stage == 3:
            return
        latest = self._engine.optimizer.averaged_gradients
        for group, sums in self._held.items():
            for total, gradient in zip(sums, latest[group], strict=True):
                total.add_(gradient)
            latest[group] = sums
        self._held = dict(latest)

    def apply(self) -> Applied:
        """One clipped optimiser update with what is held; nothing is held afterwards."""
        grad_norm = self._grad_norm()
        if not math.isfinite(grad_norm):
            self.discard()
            return Applied(False, float("nan"))
        excess = (grad_norm + _NORM_EPSILON) / self._clip_norm
        if excess > 1:
            for gradient in self._gradients():
                gradient.mul_(1 / excess)
        self._engine.step()
        assert self._engine.was_step_applied(), "DeepSpeed refused a finite gradient"
        self._held = {}
        return Applied(True, grad_norm)

    def discard(self) -> None:
        """Nothing is held any more and no weight, moment or counter has moved."""
        zero = self._engine.optimizer
        zero.averaged_gradients.clear()
        zero.zero_grad(set_to_none=True)
        self._held = {}

    def parameters(self) -> dict[str, Tensor]:
        """fp32 values by name, frozen ones included. Views of the live weights below stage 3, copies at stage 3."""
        if self.stage < 3:
            return {name: p.detach() for name, p in self.network.named_parameters()}
        import deepspeed

        named = dict(self.network.named_parameters())
        with deepspeed.zero.GatheredParameters(list(named.values())):
            return {name: p.detach().clone() for name, p in named.items()}

    def moments(self) -> dict[str, Tensor]:
        """``exp_avg.<name>`` and ``exp_avg_sq.<name>`` of each trainable parameter, whole, on every rank."""
        from deepspeed.utils import safe_get_full_optimizer_state

        return {
            f"{key}.{name}": safe_get_full_optimizer_state(p, key)
            for name, p in self._trainable().items()
            for key in MOMENTS
        }

    def load(self, parameters: Mapping[str, Tensor], moments: Mapping[str, Tensor], *, lr: float, updates: int) -> None:
        """Weights, DeepSpeed's fp32 masters, moments, LR and update count are the ones given.

        Raises KeyError for a missing name and ValueError for a shape that differs, before anything is changed.
        """
        self._check(parameters, moments)
        self._write_weights(parameters)
        for name, p in self._trainable().items():
            self._write_master(p, parameters[name].to(p.device))
            for key in MOMENTS:
                self._write_moment(p, moments[f"{key}.{name}"].to(p.device), key)
        for state in self._adam_state().values():
            state["step"].fill_(updates)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr

    def _gradients(self) -> list[Tensor]:
        """This rank's share of the gradient that is held."""
        return [gradient for group in self._engine.optimizer.averaged_gradients.values() for gradient in group]

    def _grad_norm(self) -> float:
        """Of all ranks' shares together, as fp32: summed in fp64, so that the order of summing hardly ever shows."""
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in self._gradients()]
        return float(self._ranks.sum(torch.stack(norms).square().sum()).sqrt().float())

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def _adam_state(self) -> Any:
        return self._engine.optimizer.optimizer.state

    def _allocate_moments(self) -> None:
        """Zero moments exist before the first update, so that they can be read and set at any time."""
        zero = self._engine.optimizer
        masters = zero.fp32_partitioned_groups_flat if self.stage == 3 else zero.single_partition_of_fp32_groups
        for master in masters:
            state = self._adam_state()[master]
            state["step"] = torch.zeros((), dtype=torch.float32, device=master.device)
            for key in MOMENTS:
                state[key] = torch.zeros_like(master)
        if self.stage < 3:
            zero._lazy_init_hp_params_optimizer_state()

    @torch.no_grad()
    def _write_weights(self, parameters: Mapping[str, Tensor]) -> None:
        named = dict(self.network.named_parameters())
        if self.stage < 3:
            for name, p in named.items():
                p.copy_(parameters[name])
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(named.values()), modifier_rank=0):
            for name, p in named.items():
                p.copy_(parameters[name])

    def _write_master(self, p: nn.Parameter, whole: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        if self.stage < 3:
            safe_set_full_fp32_param(p, whole)
        else:
            safe_set_local_fp32_param(p, self._own_part(p, whole))

    def _write_moment(self, p: nn.Parameter, whole: Tensor, key: str) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if self.stage < 3:
            safe_set_full_optimizer_state(p, whole, key)
        else:
            safe_set_local_optimizer_state(p, self._own_part(p, whole), key)

    def _own_part(self, p: Any, whole: Tensor) -> Tensor:
        """This rank's share of a parameter at stage 3, filled up with zeros where it does not divide evenly.

        DeepSpeed's own setters of whole parameters do not fill up, and fail on the last rank.
        """
        size = p.ds_tensor.numel()
        missing = size * self._ranks.world_size - whole.numel()
        return F.pad(whole.flatten(), (0, missing)).narrow(0, size * self._ranks.rank, size)

    def _check(self, parameters: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        for name, p in self.network.named_parameters():
            shape = tuple(getattr(p, "ds_shape", p.shape))
            wanted = [(parameters, name)]
            if p.requires_grad:
                wanted += [(moments, f"{key}.{name}") for key in MOMENTS]
            for tensors, key in wanted:
                if tuple(tensors[key].shape) != shape:
                    raise ValueError(f"{key} has shape {tuple(tensors[key].shape)}, the network wants {shape}")


def _config(settings: LearnerSettings, *, num_trainable: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.zero_stage < 3:
        zero["compute_grad_norm"] = False
    else:
        # Allocated whole at the start: DeepSpeed's own default is 2 GB for a network of any size.
        zero["reduce_bucket_size"] = min(num_trainable, _MAX_BUCKET_ELEMENTS)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "torch_autocast": {"enabled": settings.dtype == "bfloat16", "dtype": "bfloat16"},
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }
