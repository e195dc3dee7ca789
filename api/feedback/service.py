"""Feedback on an episode: kept with its source; its fate says what became of it."""

from __future__ import annotations

from dataclasses import replace

from api.auth import Caller
from api.clients.names import named_episode, turn_numbers
from api.feedback.schemas import FeedbackCreate, FeedbackList, FeedbackOut
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from online_agent.store.records import FeedbackNew, FeedbackRecord
from online_agent.store.session import Transaction


async def add(runtime: Runtime, caller: Caller, episode_id: str, body: FeedbackCreate, claim: Claim | None) -> Outcome:
    """The stored feedback with its fate. Raises NotFound for another tenant's episode.

    A client's episode that is over is graded with it: nothing else will be its verdict.
    """

    def work(tx: Transaction) -> FeedbackRecord:
        target, of_completion = named_episode(tx, caller.tenant_id, episode_id)
        turns = turn_numbers(tx, caller.tenant_id, target, body.turns) or of_completion
        new = FeedbackNew(source=body.source, reward=body.reward, text=body.text, turns=turns)
        record = tx.feedback.add(caller.tenant_id, target, new)
        tx.clients.settle(target)
        return record

    async def effect() -> Outcome:
        record = await runtime.write(work)
        return Outcome(201, FeedbackOut.of(record).model_dump() | {"text": None})  # remembered without the text

    outcome = await once(runtime, claim, effect)
    return replace(outcome, shown=outcome.body | {"text": body.text})


async def of_episode(runtime: Runtime, caller: Caller, episode_id: str) -> FeedbackList:
    def collect(tx: Transaction) -> list[FeedbackRecord]:
        target, _ = named_episode(tx, caller.tenant_id, episode_id)
        return tx.feedback.of_episode(caller.tenant_id, target)

    records = await runtime.read(collect)
    return FeedbackList(data=[FeedbackOut.of(record) for record in records])
