"""Episodes as clients see them: started, waited for, read and erased."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import orjson

from api.auth import Caller
from api.clients.names import named_episode
from api.envs.service import environment
from api.episodes.given import check_only_way, given_task
from api.episodes.schemas import (
    MAX_METADATA_BYTES,
    EpisodeCreate,
    EpisodeCreated,
    EpisodeDetail,
    EpisodeList,
    EpisodeOut,
    GivenTaskOut,
    GroupOut,
    TurnOut,
)
from api.errors import ShuttingDown
from api.feedback.schemas import FeedbackOut
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from envs.types import Split, Task
from online_agent.agent.requests import EpisodeRequest
from online_agent.errors import BadInput, NotFound, TooLarge, UnknownName
from online_agent.store.records import EpisodeRecord
from online_agent.store.session import Transaction
from online_agent.types import EpisodeStatus, Limits, Sampling

TASK_NAMES = "tasks are train-<n> and heldout-<n> with n from 0"

Include = Literal["turns", "spans", "feedback", "files", "task"]


async def create(
    runtime: Runtime, caller: Caller, body: EpisodeCreate, claim: Claim | None, *, is_stream: bool = False
) -> Outcome:
    """The episode, or each of the group, is a row and runs.

    Raises UnknownName, Conflict (pinned version), Busy (not room for all), ShuttingDown, BadInput (a group streamed, a
    task that cannot be used).
    """
    if is_stream and (body.group_size or 1) > 1:
        raise BadInput(f"a stream tells of one episode, not of a group of {body.group_size}", param="group_size")

    async def effect() -> Outcome:
        if runtime.is_draining:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        request = await _request_of(runtime, body)
        group_size = 1 if is_stream else _group_size(runtime, body, request)
        group_id, episode_ids = await _start(runtime, caller, request, group_size)
        created = EpisodeCreated(
            id=episode_ids[0],
            status=EpisodeStatus.OPEN,
            env=body.env,
            task_id=request.task_id,
            group_id=group_id,
            episode_ids=episode_ids,
        )
        return Outcome(201, created.model_dump())

    return await once(runtime, claim, effect)


async def _start(
    runtime: Runtime, caller: Caller, request: EpisodeRequest, group_size: int
) -> tuple[str | None, list[str]]:
    """The group, None for an episode alone, and the ids of all episodes."""
    runner = runtime.runner
    try:
        if group_size == 1:
            return None, [await runner.start(caller.tenant_id, caller.key_id, request)]
        group = await runner.start_group(caller.tenant_id, caller.key_id, request, group_size)
        return group.id, list(group.episode_ids)
    except UnknownName as error:
        if error.param != "task_id":
            raise
        raise UnknownName(f"{error.message}; {TASK_NAMES}", param=error.param) from error


async def _request_of(runtime: Runtime, body: EpisodeCreate) -> EpisodeRequest:
    if len(orjson.dumps(body.metadata)) > MAX_METADATA_BYTES:
        raise TooLarge(f"metadata has more than {MAX_METADATA_BYTES} bytes of JSON", param="metadata")
    task = await _given_task(runtime, body)
    return EpisodeRequest(
        env=body.env,
        task_id=task.id if task else body.task_id or await _next_task(runtime, body),
        task=task,
        sampling=_sampling(runtime, body),
        limits=_limits(runtime, body),
        weight_version=body.weight_version,
        metadata=runtime.redactor.json(body.metadata),
    )


async def _given_task(runtime: Runtime, body: EpisodeCreate) -> Task | None:
    """None for a request that gives none. Raises UnknownName for the environment, too."""
    found = environment(runtime, body.env)
    given = body.task
    if given is None:
        return None
    check_only_way(body.model_fields_set)
    return await runtime.on_thread(lambda: given_task(found, given, runtime.redactor))


def _group_size(runtime: Runtime, body: EpisodeCreate, request: EpisodeRequest) -> int:
    """As asked for; else the setting, for what can be trained on: the train split, no pin, trainable sampling."""
    if body.group_size is not None:
        return body.group_size
    is_for_training = request.weight_version is None and request.untrainable_reason is None
    if is_for_training and _split_of(runtime, request) == "train":
        return runtime.settings.agent.group_size or 1
    return 1


def _split_of(runtime: Runtime, request: EpisodeRequest) -> Split | None:
    """None for a task that does not exist, which starting it will say."""
    if request.task is not None:
        return request.task.split
    try:
        return environment(runtime, request.env).task(request.task_id).split
    except KeyError:
        return None


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
    """Each episode once it is graded or failed, or as it stands when its time and the grader's are over.

    One that was erased since its creation is missing among the members of its group; the first one, or one alone, is
    answered as it was created.
    """
    episode_ids = created.body.get("episode_ids") or [created.body["id"]]
    settled = await asyncio.gather(*(_settled(runtime, caller, episode_id) for episode_id in episode_ids))
    first, members = settled[0], [EpisodeOut.of(record) for record in settled if record is not None]
    if first is None:
        return created
    shown = EpisodeOut.of(first)
    if first.group_id is not None:
        shown = GroupOut.of(first, episode_ids=episode_ids, members=members)
    return replace(created, shown=shown.model_dump(mode="json"))


async def _settled(runtime: Runtime, caller: Caller, episode_id: str) -> EpisodeRecord | None:
    """None when it was erased."""
    try:
        record = await runtime.read(lambda tx: tx.episodes.get(caller.tenant_id, episode_id))
        if record.status in (EpisodeStatus.OPEN, EpisodeStatus.FINISHED):
            record = await _wait(runtime, record)
    except NotFound:
        return None
    return record


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
        target, _ = named_episode(tx, caller.tenant_id, episode_id)
        record = tx.episodes.get(caller.tenant_id, target)
        turns = feedback = None
        if "turns" in include or "spans" in include:
            turns = [TurnOut.of(turn, with_spans="spans" in include) for turn in tx.episodes.turns(target)]
        if "feedback" in include or "spans" in include:
            feedback = [FeedbackOut.of(f) for f in tx.feedback.of_episode(caller.tenant_id, target)]
        files = dict(record.artifact.files) if "files" in include and record.artifact else None
        task = GivenTaskOut.of(record) if "task" in include else None
        return EpisodeDetail.of(record, turns=turns, feedback=feedback, files=files, task=task)

    return await runtime.read(collect)


async def list_episodes(
    runtime: Runtime,
    caller: Caller,
    status: EpisodeStatus | None,
    env: str | None,
    weight_version: int | None,
    group_id: str | None,
    cursor: str | None,
    limit: int,
) -> EpisodeList:
    page = await runtime.read(
        lambda tx: tx.episodes.list(
            caller.tenant_id,
            status=status,
            env=env,
            weight_version=weight_version,
            group_id=group_id,
            cursor=cursor,
            limit=limit,
        )
    )
    return EpisodeList(data=[EpisodeOut.of(record) for record in page.items], next_cursor=page.cursor)


async def erase(runtime: Runtime, caller: Caller, episode_id: str) -> None:
    """The contents are gone. That it was trained on, and in which step, stays known."""

    def work(tx: Transaction) -> None:
        of_client = tx.clients.find(
            caller.tenant_id, episode_id
        )  # not by a completion's id: that is one answer of many
        tx.episodes.erase(caller.tenant_id, episode_id if of_client is None else of_client.id)

    await runtime.write(work)
