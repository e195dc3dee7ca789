"""Episodes as clients see them: started, waited for, read and erased."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import orjson

from api.auth import Caller
from api.envs.service import environment
from api.episodes.schemas import (
    MAX_METADATA_BYTES,
    EpisodeCreate,
    EpisodeCreated,
    EpisodeDetail,
    EpisodeList,
    EpisodeOut,
    TurnOut,
)
from api.errors import ShuttingDown
from api.feedback.schemas import FeedbackOut
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from online_agent.agent.requests import EpisodeRequest
from online_agent.errors import NotFound, TooLarge, UnknownName
from online_agent.store.records import EpisodeRecord
from online_agent.store.session import Transaction
from online_agent.types import EpisodeStatus, Limits, Sampling

TASK_NAMES = "tasks are train-<n> and heldout-<n> with n from 0"

Include = Literal["turns", "spans", "feedback", "files"]


async def create(runtime: Runtime, caller: Caller, body: EpisodeCreate, claim: Claim | None) -> Outcome:
    """The episode is a row and runs. Raises UnknownName, Conflict (pinned version), Busy (queue full), ShuttingDown."""

    async def effect() -> Outcome:
        if runtime.is_draining:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        request = await _request_of(runtime, body)
        episode_id = await _start(runtime, caller, request)
        created = EpisodeCreated(id=episode_id, status=EpisodeStatus.OPEN, env=body.env, task_id=request.task_id)
        return Outcome(201, created.model_dump())

    return await once(runtime, claim, effect)


async def _start(runtime: Runtime, caller: Caller, request: EpisodeRequest) -> str:
    try:
        return await runtime.runner.start(caller.tenant_id, caller.key_id, request)
    except UnknownName as error:
        if error.param != "task_id":
            raise
        raise UnknownName(f"{error.message}; {TASK_NAMES}", param=error.param) from error


async def _request_of(runtime: Runtime, body: EpisodeCreate) -> EpisodeRequest:
    if len(orjson.dumps(body.metadata)) > MAX_METADATA_BYTES:
        raise TooLarge(f"metadata has more than {MAX_METADATA_BYTES} bytes of JSON", param="metadata")
    environment(runtime, body.env)
    return EpisodeRequest(
        env=body.env,
        task_id=body.task_id or await _next_task(runtime, body),
        sampling=_sampling(runtime, body),
        limits=_limits(runtime, body),
        weight_version=body.weight_version,
        metadata=body.metadata,
    )


async def _next_task(runtime: Runtime, body: EpisodeCreate) -> str:
    counter = runtime.task_counter
    if not counter.is_started(body.env, body.split):
        first = await runtime.read(lambda tx: tx.changes.finished_episodes(body.env))
        counter.start(body.env, body.split, first)
    return counter.next_id(body.env, body.split)


def _sampling(runtime: Runtime, body: EpisodeCreate) -> Sampling:
    defaults, asked = runtime.settings.agent, body.sampling
    return Sampling(
        temperature=defaults.temperature if asked.temperature is None else asked.temperature,
        top_p=defaults.top_p if asked.top_p is None else asked.top_p,
        max_new_tokens=asked.max_new_tokens or defaults.max_new_tokens,
    )


def _limits(runtime: Runtime, body: EpisodeCreate) -> Limits:
    defaults, asked = runtime.settings.agent, body.limits
    return Limits(
        max_turns=asked.max_turns or defaults.max_turns,
        max_tokens=asked.max_tokens or defaults.max_tokens,
        timeout_s=asked.timeout_s or defaults.timeout_s,
    )


async def joined(runtime: Runtime, caller: Caller, created: Outcome) -> Outcome:
    """The episode once it is graded or failed, or as it stands when its time and the grader's are over.

    An episode that was erased since its creation is answered as it was created.
    """
    episode_id = created.body["id"]
    try:
        record = await runtime.read(lambda tx: tx.episodes.get(caller.tenant_id, episode_id))
        if record.status in (EpisodeStatus.OPEN, EpisodeStatus.FINISHED):
            record = await _wait(runtime, record)
    except NotFound:
        return created
    return replace(created, shown=EpisodeOut.of(record).model_dump(mode="json"))


async def _wait(runtime: Runtime, record: EpisodeRecord) -> EpisodeRecord:
    timeout_s = record.limits.timeout_s + runtime.settings.api.held_timeout_s
    with runtime.waiting():
        try:
            return await runtime.runner.wait(record.id, timeout_s)
        except asyncio.CancelledError:
            if not runtime.is_drained_under_us():
                raise
    return await runtime.read(lambda tx: tx.episodes.get(record.tenant_id, record.id))


async def get(runtime: Runtime, caller: Caller, episode_id: str, include: Collection[Include]) -> EpisodeDetail:
    """The whole episode as far as asked for. ``spans`` brings turns, token data and feedback."""

    def collect(tx: Transaction) -> EpisodeDetail:
        record = tx.episodes.get(caller.tenant_id, episode_id)
        turns = feedback = None
        if "turns" in include or "spans" in include:
            turns = [TurnOut.of(turn, with_spans="spans" in include) for turn in tx.episodes.turns(episode_id)]
        if "feedback" in include or "spans" in include:
            feedback = [FeedbackOut.of(f) for f in tx.feedback.of_episode(caller.tenant_id, episode_id)]
        files = dict(record.artifact.files) if "files" in include and record.artifact else None
        return EpisodeDetail.of(record, turns=turns, feedback=feedback, files=files)

    return await runtime.read(collect)


async def list_episodes(
    runtime: Runtime,
    caller: Caller,
    status: EpisodeStatus | None,
    env: str | None,
    weight_version: int | None,
    cursor: str | None,
    limit: int,
) -> EpisodeList:
    page = await runtime.read(
        lambda tx: tx.episodes.list(
            caller.tenant_id, status=status, env=env, weight_version=weight_version, cursor=cursor, limit=limit
        )
    )
    return EpisodeList(data=[EpisodeOut.of(record) for record in page.items], next_cursor=page.cursor)


async def erase(runtime: Runtime, caller: Caller, episode_id: str) -> None:
    """The contents are gone. That it was trained on, and in which step, stays known."""
    await runtime.write(lambda tx: tx.episodes.erase(caller.tenant_id, episode_id))
