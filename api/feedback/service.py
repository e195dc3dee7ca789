"""Feedback on an episode: kept with its source; its fate says what became of it."""

from __future__ import annotations

from dataclasses import replace

from api.auth import Caller
from api.feedback.schemas import FeedbackCreate, FeedbackList, FeedbackOut
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from online_agent.store.records import FeedbackNew


async def add(runtime: Runtime, caller: Caller, episode_id: str, body: FeedbackCreate, claim: Claim | None) -> Outcome:
    """The stored feedback with its fate. Raises NotFound for another tenant's episode."""
    new = FeedbackNew(source=body.source, reward=body.reward, text=body.text, turns=tuple(body.turns))

    async def effect() -> Outcome:
        record = await runtime.write(lambda tx: tx.feedback.add(caller.tenant_id, episode_id, new))
        return Outcome(201, FeedbackOut.of(record).model_dump() | {"text": None})  # remembered without the text

    outcome = await once(runtime, claim, effect)
    return replace(outcome, shown=outcome.body | {"text": body.text})


async def of_episode(runtime: Runtime, caller: Caller, episode_id: str) -> FeedbackList:
    records = await runtime.read(lambda tx: tx.feedback.of_episode(caller.tenant_id, episode_id))
    return FeedbackList(data=[FeedbackOut.of(record) for record in records])
