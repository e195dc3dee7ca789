"""The learner as an operator sees it: its queue, its last steps, and the switch that pauses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from api.runtime import Runtime
from api.training.schemas import PauseOut, StepList, StepOut, TrainingOut
from online_agent.store.records import StepRecord
from online_agent.store.session import Transaction
from online_agent.types import StepStatus

NUM_LAST_STEPS = 20


async def overview(runtime: Runtime) -> TrainingOut:
    learner, recipe = runtime.settings.learner, runtime.settings.recipe

    def collect(tx: Transaction) -> TrainingOut:
        control, steps, serving = tx.control.get(), tx.steps.last(NUM_LAST_STEPS), tx.weights.serving()
        counts, queue = tx.episodes.counts_by_status(), tx.episodes.queue(recipe.group_size)
        return TrainingOut(
            state=_state(control.is_paused, steps),
            is_paused=control.is_paused,
            current_version=control.current_version,
            serving_version=serving.version if serving else None,
            recipe=learner.recipe,
            group_size=recipe.group_size,
            batch_episodes=learner.batch_episodes,
            max_staleness_versions=learner.max_staleness_versions,
            num_ready=queue.num_ready,
            num_ungraded=queue.num_ungraded,
            queue={status.value: count for status, count in counts.items()},
            drops_by_reason=dict(tx.episodes.drops_by_reason()),
            episodes_trained_twice=tx.episodes.trained_twice(),
            steps_committed=tx.steps.counts_by_status()[StepStatus.COMMITTED],
            steps=[StepOut.of(step) for step in steps],
        )

    return await runtime.read(collect)


def _state(is_paused: bool, steps: Sequence[StepRecord]) -> Literal["paused", "stepping", "waiting"]:
    if any(step.status is StepStatus.RESERVED for step in steps):
        return "stepping"
    return "paused" if is_paused else "waiting"


async def list_steps(runtime: Runtime, cursor: int | None, limit: int) -> StepList:
    steps = await runtime.read(lambda tx: tx.steps.last(limit, before=cursor))
    return StepList(
        data=[StepOut.of(step) for step in steps],
        next_cursor=str(steps[-1].step) if len(steps) == limit else None,
    )


async def pause(runtime: Runtime) -> PauseOut:
    """No further step begins; one under way ends."""
    await runtime.write(lambda tx: tx.control.pause())
    return PauseOut(is_paused=True)


async def resume(runtime: Runtime) -> PauseOut:
    await runtime.write(lambda tx: tx.control.resume())
    return PauseOut(is_paused=False)
