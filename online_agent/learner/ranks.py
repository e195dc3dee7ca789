"""The processes that train together: one without a launcher, N under DeepSpeed's or torchrun's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from online_agent.config.training import LearnerSettings

_LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
# Ranks other than the first wait in a collective for as long as the queue is empty.
_COLLECTIVE_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among ``world_size``. Every collective must be entered by all ranks in the same order."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over ranks, on every rank."""
        if self.world_size > 1:
            dist.all_reduce(x)
        return x

    def gather_tokens(self, x_KN: Tensor) -> Tensor:
        """(K, sum of N) fp32: the columns of all ranks, in rank order, on every rank. N may differ by rank."""
        if self.world_size == 1:
            return x_KN
        counts = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(counts, torch.tensor([x_KN.shape[1]], device=self.device))
        longest = max(int(count) for count in counts)
        padded = x_KN.new_zeros((x_KN.shape[0], longest))
        padded[:, : x_KN.shape[1]] = x_KN
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:, : int(count)] for part, count in zip(parts, counts, strict=True)], dim=1)

    def broadcast(self, message: Any = None) -> Any:
        """What rank 0 passed, on every rank. For the command channel between the ranks of one learner only."""
        box = [message]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]


def join_ranks(settings: LearnerSettings) -> Ranks:
    """The process group is up, threads are set and DeepSpeed may be initialised. Idempotent.

    Without launcher variables the group is this process alone and opens no port. The op ``deepspeed_shm_comm`` is
    switched off: DeepSpeed would compile it on every CPU start, and a process killed while compiling leaves a lock
    on which every later start waits for ever (pytorch 189245).
    """
    os.environ.setdefault("DS_ACCELERATOR", settings.device)
    os.environ.setdefault("LOCAL_RANK", "0")
    torch.set_num_threads(settings.num_threads)
    if not dist.is_initialized():
        _start_group("nccl" if settings.device == "cuda" else "gloo")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    device = torch.device("cpu")
    if settings.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def _start_group(backend: str) -> None:
    if all(name in os.environ for name in _LAUNCHER_VARIABLES):
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
    else:
        store = HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=_COLLECTIVE_TIMEOUT)
