"""Live traffic for tests: graded episodes at a given rate of success and of failed tool calls."""

from __future__ import annotations

import random

from envs.types import Artifact, Observation, Split, Verdict
from online_agent.store.records import EpisodeNew, TurnNew
from online_agent.store.session import Database
from online_agent.types import StopReason, ToolCall
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, make_turn

ENV = "bug_repair"


class Traffic:
    """Graded episodes, one a second, of five tool calls; a new version every 32 episodes."""

    def __init__(self, db: Database, clock: ManualClock) -> None:
        self._db, self._clock, self._random, self._number = db, clock, random.Random(0), 0

    def run(self, num: int, success: float, errors: float, split: Split = "train", task_id: str | None = None) -> None:
        with self._db.transaction() as tx:
            for _ in range(num):
                self._clock.advance(1.0)
                episode_id = tx.episodes.create(EpisodeNew(TENANT, ENV, task_id or f"{split}-1", split))
                tx.episodes.add_turn(episode_id, self._turn(errors))
                tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({}, is_submitted=True))
                reward = float(self._random.random() < success)
                tx.episodes.grade(episode_id, Verdict(reward, reward > 0))
                self._number += 1

    def _turn(self, errors: float) -> TurnNew:
        turn = make_turn(versions=(self._number // 32,))
        observations = [Observation("x", is_error=self._random.random() < errors) for _ in range(5)]
        return TurnNew(turn.spans, tool_calls=[ToolCall("read_file")] * 5, observations=observations)
