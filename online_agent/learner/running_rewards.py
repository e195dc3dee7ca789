"""The rewards a running mean is taken over, kept between steps and with the checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from online_agent.algo.advantages import running_mean_advantages
from online_agent.recipes.parts import RunningMean
from online_agent.types import TrainingEpisode

STREAM_WINDOW, TASK_WINDOW = 128, 8
# Tasks seen longest ago are forgotten beyond this many; their next reward counts against no history.
MAX_TASKS = 10_000
_STREAM = ""


class RunningRewards:
    """The last rewards of the stream, or of each task. Reading changes nothing; ``observe`` does."""

    def __init__(self, part: RunningMean) -> None:
        self._is_per_task = part.over == "task"
        self._window = part.window or (TASK_WINDOW if self._is_per_task else STREAM_WINDOW)
        self._rewards: OrderedDict[str, list[float]] = OrderedDict()

    def advantages(self, episodes: Sequence[TrainingEpisode]) -> Tensor:
        """(E,) fp64 reward minus the mean of the rewards before it, those of earlier episodes of the batch included."""
        rewards_E = torch.tensor([episode.reward for episode in episodes], dtype=torch.float64)
        advantages_E = torch.zeros_like(rewards_E)
        for key, rows in self._rows(episodes).items():
            history = torch.tensor(self._rewards.get(key, []), dtype=torch.float64)
            advantages_E[rows] = running_mean_advantages(rewards_E[rows], window=self._window, history=history)
        return advantages_E

    def observe(self, episodes: Sequence[TrainingEpisode]) -> None:
        """The batch was trained on: its rewards are history for the next one."""
        for key, rows in self._rows(episodes).items():
            past = self._rewards.pop(key, [])
            self._rewards[key] = [*past, *(episodes[i].reward for i in rows)][-self._window :]
        while len(self._rewards) > MAX_TASKS:
            self._rewards.popitem(last=False)

    def begin(self) -> None:
        self._rewards.clear()

    def state(self) -> dict[str, Any]:
        """For JSON, which keeps every digit of a float and the order of the tasks."""
        return {"over": "task" if self._is_per_task else "stream", "rewards": list(self._rewards.items())}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """What ``state`` gave. Nothing, or rewards over something else, is a beginning without history."""
        self.begin()
        if state is not None and state["over"] == self.state()["over"]:
            self._rewards.update(
                (key, [float(r) for r in rewards][-self._window :]) for key, rewards in state["rewards"]
            )

    def _rows(self, episodes: Sequence[TrainingEpisode]) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for i, episode in enumerate(episodes):
            rows.setdefault(episode.task_id if self._is_per_task else _STREAM, []).append(i)
        return rows
