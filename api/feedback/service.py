"""Feedback on an episode: kept with its source; its fate says what became of it."""

from __future__ import annotations

from dataclasses import replace

from api.auth import Caller
from api.clients.names import named_episode, turn_numbers
from api.feedback.schemas import FeedbackCreate, FeedbackList, FeedbackOut, QuarantineList
from api.feedback.trust import trust_of
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from online_agent.store.records import FeedbackNew, FeedbackRecord
from online_agent.store.session import Transaction


async def add(runtime: Runtime, caller: Caller, episode_id: str, body: FeedbackCreate, claim: Claim | None) -> Outcome:
    """The stored feedback with its fate. Raises NotFound for another tenant's episode.

    A client's episode that is over is graded with it: nothing else will be its verdict.
    """

    settings = runtime.settings.feedback
    text = None if body.text is None else runtime.redactor.text(body.text)
    trust, weight = trust_of(settings), settings.weight_of(body.source)

    def work(tx: Transaction) -> FeedbackRecord:
        target, of_completion = named_episode(tx, caller.tenant_id, episode_id)
        turns = turn_numbers(tx, caller.tenant_id, target, body.turns) or of_completion
        new = FeedbackNew(body.source, body.reward, text, turns, body.person, weight)
        record = tx.feedback.add(caller.tenant_id, target, new, trust)
        tx.clients.settle(target)
        return record

    async def effect() -> Outcome:
        record = await runtime.write(work)
        return Outcome(201, FeedbackOut.of(record).model_dump() | {"text": None})  # remembered without the text

    outcome = await once(runtime, claim, effect)
    return replace(outcome, shown=outcome.body | {"text": text})


async def of_episode(runtime: Runtime, caller: Caller, episode_id: str) -> FeedbackList:
    def collect(tx: Transaction) -> list[FeedbackRecord]:
        target, _ = named_episode(tx, caller.tenant_id, episode_id)
        return tx.feedback.of_episode(caller.tenant_id, target)

    records = await runtime.read(collect)
    return FeedbackList(data=[FeedbackOut.of(record) for record in records])


async def quarantined(runtime: Runtime, caller: Caller, cursor: int | None, limit: int) -> QuarantineList:
    records = await runtime.read(lambda tx: tx.feedback.quarantined(caller.tenant_id, limit, after_id=cursor or 0))
    return QuarantineList(
        data=[FeedbackOut.of(record) for record in records],
        next_cursor=str(records[-1].id) if len(records) == limit else None,
    )


async def decide(runtime: Runtime, caller: Caller, feedback_id: int, *, counts: bool) -> FeedbackOut:
    """The feedback with its new fate. Raises NotFound for another tenant's, Conflict where nothing is to be decided."""

    def work(tx: Transaction) -> FeedbackRecord:
        move = tx.feedback.release if counts else tx.feedback.discard
        record = move(caller.tenant_id, feedback_id)
        tx.clients.settle(record.episode_id)
        facts = {"tenant_id": caller.tenant_id, "feedback_id": feedback_id, "key_id": caller.key_id}
        tx.events.add("feedback_released" if counts else "feedback_discarded", facts)
        return record

    return FeedbackOut.of(await runtime.write(work))
