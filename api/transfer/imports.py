"""Import: every item is checked before the one transaction that stores them all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import orjson

from api.auth import Caller
from api.episodes.schemas import MAX_METADATA_BYTES
from api.errors import quoted
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from api.transfer.schemas import ImportAnswer, ImportBody, ImportedOut, ImportItem, ImportSpan, ImportTurn
from api.transfer.secrets import without_secrets
from envs.types import Observation, Verdict
from online_agent.errors import BadInput, MisalignedEpisode
from online_agent.rendering import ChatRenderer
from online_agent.rendering.messages import ChatMessage
from online_agent.store.records import EpisodeNew, ImportNew, TurnNew
from online_agent.transfer.native import IMPORTED_AS, IMPORTED_PREFIX
from online_agent.transfer.texts import TEXT_ONLY, turns_of_messages
from online_agent.types import Sampling, Span, SpanKind, StopReason, ToolCall, VersionRun


async def import_episodes(runtime: Runtime, caller: Caller, body: ImportBody, claim: Claim | None) -> Outcome:
    """Raises BadInput or Conflict naming item, field and value; then nothing is stored."""

    async def effect() -> Outcome:
        items = await runtime.on_thread(lambda: _kept(body, caller, runtime))
        outcomes = await runtime.write(lambda tx: tx.imports.add(caller.tenant_id, items))
        answer = ImportAnswer(
            data=[ImportedOut.of(outcome) for outcome in outcomes],
            num_created=sum(outcome.is_new for outcome in outcomes),
        )
        return Outcome(201, answer.model_dump(mode="json"))

    return await once(runtime, claim, effect)


def _kept(body: ImportBody, caller: Caller, runtime: Runtime) -> list[ImportNew]:
    items = checked(body, caller, runtime.renderer)
    return [without_secrets(item, runtime.redactor, runtime.renderer) for item in items]


def checked(body: ImportBody, caller: Caller, renderer: ChatRenderer | None) -> list[ImportNew]:
    """The items as the store takes them."""
    return [_item(item, f"episodes.{index}", caller, renderer) for index, item in enumerate(body.episodes)]


def _item(item: ImportItem, at: str, caller: Caller, renderer: ChatRenderer | None) -> ImportNew:
    _check_metadata(item, at)
    reason = item.untrainable_reason
    if item.turns is not None:
        turns = [_turn(turn, number, f"{at}.turns.{number}", renderer) for number, turn in enumerate(item.turns)]
        if reason is None and item.sampling.top_p < 1:
            reason = f"top_p {item.sampling.top_p:g}: log-probs are those before top-p"
    else:
        turns, reason = _turns_of_text(item, at, renderer), reason or TEXT_ONLY
    return ImportNew(
        client_id=item.id,
        content_hash=hashlib.sha256(orjson.dumps(item.model_dump(), option=orjson.OPT_SORT_KEYS)).hexdigest(),
        episode=EpisodeNew(
            tenant_id=caller.tenant_id,
            env=IMPORTED_PREFIX + item.env,
            task_id=item.task_id,
            split=item.split,
            sampling=Sampling(item.sampling.temperature, item.sampling.top_p, item.sampling.max_new_tokens),
            key_id=caller.key_id,
            task={IMPORTED_AS: item.id},
            metadata=item.metadata,
            untrainable_reason=reason,
        ),
        turns=turns,
        verdict=_verdict(item),
        stop_reason=StopReason(item.stop_reason),
    )


def _check_metadata(item: ImportItem, at: str) -> None:
    size = len(orjson.dumps(item.metadata))
    if size > MAX_METADATA_BYTES:
        raise BadInput(
            f"{at}.metadata: {size} bytes as JSON, the limit is {MAX_METADATA_BYTES}", param=f"{at}.metadata"
        )


def _verdict(item: ImportItem) -> Verdict | None:
    if item.reward is None:
        return None
    is_success = item.reward > 0 if item.is_success is None else item.is_success
    return Verdict(item.reward, is_success, {})


def _turn(turn: ImportTurn, number: int, at: str, renderer: ChatRenderer | None) -> TurnNew:
    spans = [_span(span, number, f"{at}.spans.{index}", renderer) for index, span in enumerate(turn.spans)]
    return TurnNew(
        spans=spans,
        text=turn.text,
        tool_calls=[ToolCall(call.name, call.arguments, call.error) for call in turn.tool_calls],
        observations=[Observation(o.text, o.is_error, o.is_final) for o in turn.observations],
        finish_reason=turn.finish_reason,
        num_prompt_tokens=sum(len(span.token_ids) for span in spans if span.kind is not SpanKind.ACTION),
    )


def _span(span: ImportSpan, turn: int, at: str, renderer: ChatRenderer | None) -> Span:
    made = Span(
        kind=SpanKind(span.kind),
        turn=turn,
        token_ids=np.array(span.token_ids, np.int32),
        logprobs=None if span.logprobs is None else _float32(span.logprobs, at),
        version_runs=tuple(VersionRun(*run) for run in span.version_runs),
    )
    if renderer is not None and len(made.token_ids) and made.token_ids.max() >= renderer.vocab_size:
        index = int(made.token_ids.argmax())
        param = f"{at}.token_ids.{index}"
        raise BadInput(f"{param}: {made.token_ids[index]} is no token of {renderer.vocab_size}", param=param)
    if made.kind is SpanKind.ACTION and made.logprobs is None and not made.version_runs:
        return made  # kept, not trained on
    try:
        made.check()
    except MisalignedEpisode as error:
        raise BadInput(f"{at}: {error.message}", param=at) from error
    return made


def _float32(logprobs: Sequence[float], at: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values = np.array(logprobs, np.float64)
    is_too_large = np.abs(values) > np.finfo(np.float32).max
    if is_too_large.any():
        index = int(is_too_large.argmax())
        param = f"{at}.logprobs.{index}"
        raise BadInput(f"{param}: {quoted(logprobs[index])} is out of range", param=param)
    return values.astype(np.float32)


def _turns_of_text(item: ImportItem, at: str, renderer: ChatRenderer | None) -> list[TurnNew]:
    if renderer is None:
        raise BadInput(f"{at}.messages: this server has no tokenizer", param=f"{at}.messages")
    messages = [ChatMessage(message.role, message.content) for message in item.messages or ()]
    try:
        return turns_of_messages(messages, renderer)
    except BadInput as error:
        raise BadInput(f"{at}.{error.message}", param=f"{at}.{error.param or 'messages'}") from error
